// Package page has what all pages for browsers share: the frame with the search box, the embedded assets, text of
// repositories as HTML, highlighted code, and failures.
//
// Repositories and queries may be hostile. gomponents escapes their text; WriteText and Render also show characters
// that deceive. The Content-Security-Policy lets browsers run and load only files of this server. A page is rendered
// completely before it is sent. Pages work without JavaScript: page.js replaces results without a new page and adds
// keys.
package page
