// Package web has pages for people with browsers: one to search code in, and one for each file of each commit.
//
// What they show anybody may have pushed: html/template writes it, or writeText, and the security policy lets nothing
// run or load that is not ours. A page is made whole before it is sent. Without JavaScript all works; page.js only
// saves the browser a page for each search.
package web
