"""What is minimised: a batch in, named losses out."""
