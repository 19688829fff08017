package api

// LimitResponses sets the maximum size of GraphQL responses in bytes.
func (a *API) LimitResponses(n int) { a.graphql.maxResponse = n }

// LimitLists sets the maximum number of bytes of results that all GraphQL requests hold.
func (a *API) LimitLists(n int64) { a.graphql.maxAllLists = n }

// Lists returns the number of bytes of results that GraphQL requests hold now.
func (a *API) Lists() int64 { return a.graphql.lists.Load() }
