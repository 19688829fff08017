// Package api serves programs that search code over HTTP: with Packhorse's API below /-/api/v1/search, and with the two
// APIs of Sourcegraph below /.api/ that its command line src uses. Package search/schema defines the results, and
// docs/reference/search-api.md describes requests and responses.
package api
