// The list of sweeps: fetches itself every few seconds while somebody looks, and takes its rows.

const EVERY_MS = 5000;

async function look() {
  if (!document.hidden) {
    try {
      const answer = await fetch("");
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const body = document.querySelector("tbody"), focused = document.activeElement?.getAttribute("href");
      const rows = page.querySelector("tbody");
      if (rows && rows.outerHTML !== body.outerHTML) {
        body.replaceWith(document.adoptNode(rows));
        if (focused) rows.querySelector(`a[href="${focused}"]`)?.focus();
      }
    } catch {
      document.getElementById("ended").textContent = "The server has ended.";
    }
  }
  setTimeout(look, EVERY_MS);
}

setTimeout(look, EVERY_MS);
