package api

// LimitResponses sets the maximum size of GraphQL responses in bytes.
func (a *API) LimitResponses(n int) { a.graphql.maxResponse = n }
