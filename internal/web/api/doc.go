// Package api answers programs that search code, over HTTP: by our own API, below /-/api/v1/search, and by those two of
// Sourcegraph's that its command line src uses, below /.api/. What goes over the wire is package search/schema's, and
// docs/how-to/search.md tells it.
package api
