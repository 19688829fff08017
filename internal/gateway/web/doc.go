// Package web serves pages for browsers: one to search code, and one for each file of each commit.
//
// Repositories and queries may be hostile. gomponents escapes their text in pages; writeText does so for the lines of a
// file. The Content-Security-Policy lets browsers run and load only the embedded assets. A page is rendered completely
// before it is sent. Pages work without JavaScript: page.js replaces results without a new page and adds keys.
package web
