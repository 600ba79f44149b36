// A button on every block of code copies it: without prompts and what is printed after them, and of a difference what comes out.
"use strict";

function codeOf(block) {
  const text = block.querySelector("pre").innerText.replace(/\n+$/, "").split("\n");
  const marks = block.parentElement.classList;
  if (marks.contains("highlight-diff")) {
    return text.filter((line) => !/^-/.test(line)).map((line) => line.slice(1)).join("\n");
  }
  if (text.some((line) => line.startsWith(">>> "))) {
    return text.filter((line) => /^(>>>|\.\.\.)( |$)/.test(line)).map((line) => line.slice(4)).join("\n");
  }
  return text.join("\n");
}

function copyOldWay(text) { // where a page is no secure context: http, and files in some browsers
  const area = document.body.appendChild(document.createElement("textarea"));
  area.value = text;
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  return done;
}

async function copyFrom(block, button) {
  const text = codeOf(block);
  let done = false;
  try {
    await navigator.clipboard.writeText(text);
    done = true;
  } catch {
    done = copyOldWay(text);
  }
  button.textContent = done ? "copied" : "not allowed";
  setTimeout(() => { button.textContent = "copy"; }, 1500);
}

document.addEventListener("DOMContentLoaded", () => {
  for (const block of document.querySelectorAll("div.highlight")) {
    if (block.parentElement.classList.contains("highlight-text")) continue; // what programs print
    const button = document.createElement("button");
    button.className = "copy-code";
    button.type = "button";
    button.textContent = "copy";
    button.addEventListener("click", () => copyFrom(block, button));
    block.append(button);
  }
});
