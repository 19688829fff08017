// Package wire has the JSON that search clients read: Sourcegraph's stream and GraphQL, and our own.
package wire

// Format is how results are written.
type Format int

const (
	// API is our own, of /-/api/v1/search.
	API Format = iota
	// StreamLines and StreamChunks are those of Sourcegraph's stream, without and with cm=t.
	StreamLines
	StreamChunks
	// GraphQL is that of Sourcegraph's GraphQL API.
	GraphQL
)
