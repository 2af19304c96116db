// A click on the head of a column sorts its table; a second click turns the order around.
document.addEventListener("click", (event) => {
  const head = event.target.closest("article th, .md-content th");
  if (!head || !head.closest("thead")) return;
  const table = head.closest("table");
  const column = [...head.parentNode.children].indexOf(head);
  const direction = head.dataset.order === "down" ? "up" : "down";
  for (const other of head.parentNode.children) delete other.dataset.order;
  head.dataset.order = direction;
  const value = (row) => row.children[column].textContent.trim().replace(/,/g, "");
  const rows = [...table.tBodies[0].rows];
  rows.sort((one, two) => {
    const [a, b] = [value(one), value(two)];
    if (a === "" || b === "") return (a === "") - (b === ""); // what is not there comes last
    const order = isNaN(a) || isNaN(b) ? a.localeCompare(b) : a - b;
    return direction === "down" ? -order : order;
  });
  table.tBodies[0].append(...rows);
});
