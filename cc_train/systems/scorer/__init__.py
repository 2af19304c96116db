"""SCORER and CBR: contrast between pairs makes difference features that ignore the viewpoint."""
