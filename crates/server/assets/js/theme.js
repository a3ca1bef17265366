// Sets the tone that the reader chose before, ahead of the first paint: so it is no module.
try {
  const chosen = localStorage.getItem('theme');
  if (chosen) document.documentElement.dataset.theme = chosen;
} catch { /* Without storage the system's tone holds. */ }
