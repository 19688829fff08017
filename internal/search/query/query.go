// Package query reads search queries as users of zoekt and Sourcegraph write them.
package query

// Query is a search query that could be read.
type Query struct {
	Text string // as it was written
}
