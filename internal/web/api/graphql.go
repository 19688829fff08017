package api

import (
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"sync"

	"github.com/graph-gophers/graphql-go"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/search"
)

//go:embed schema.graphql
var schemaText string

// Bounds of a request for GraphQL: as large as what src sends, some times over.
const (
	maxDocument   = 32 << 10 // bytes; a search's query is a variable
	maxBody       = 1 << 20
	maxFields     = 2000 // in it, once fragments are where they are used
	maxDepth      = 15   // of fields in fields; what asks for the schema itself has 13
	maxOverlaps   = 10_000
	maxSearches   = 4 // and lists of repositories, whatever their aliases
	maxAtOnce     = 2
	maxLists      = 64 << 20 // bytes of results
	maxRepos      = 10_000
	queryResponse = "application/json; charset=utf-8"
)

// rootResolver is what may be asked for.
type rootResolver struct {
	*graphql.Schema
	api *API
}

func newSchema(a *API) (*rootResolver, error) {
	s := &rootResolver{api: a}
	var err error
	s.Schema, err = graphql.ParseSchema(schemaText, s, graphql.UseStringDescriptions(), graphql.UseFieldResolvers(),
		graphql.MaxQueryLength(maxDocument), graphql.MaxSelections(maxFields), graphql.MaxDepth(maxDepth),
		graphql.OverlapValidationLimit(maxOverlaps), graphql.MaxParallelism(maxAtOnce), graphql.DisableFieldSelections(),
		graphql.PanicHandler(panics{}), graphql.Logger(panics{}))
	return s, err
}

// graphQLRequest is one request.
type graphQLRequest struct {
	Query         string         `json:"query"`
	OperationName string         `json:"operationName"`
	Variables     map[string]any `json:"variables"`
}

// serveGraphQL answers POST /.api/graphql. What is wrong with a request is in the answer's errors.
func (a *API) serveGraphQL(w http.ResponseWriter, r *http.Request, v search.Visitor) (err error) {
	var failed error // that the answer tells of
	defer func() { a.Metrics.count("graphql", cmp.Or(err, failed)) }()
	if r.Method != http.MethodPost {
		return methods(w, "POST")
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, maxBody+1))
	if err != nil {
		return err
	}
	if len(body) > maxBody {
		return fault.New(fault.Invalid, "GraphQL request too long: at most %d bytes", maxBody)
	}
	var q graphQLRequest
	decoder := json.NewDecoder(bytes.NewReader(body))
	if err := decoder.Decode(&q); err != nil || q.Query == "" {
		return fault.Wrap(fault.Invalid, "the request body is not a JSON object with a query",
			errors.Join(err, errors.New("no query")))
	}
	caller := &caller{Visitor: v}
	response := a.graphql.Exec(context.WithValue(r.Context(), callerKey{}, caller), q.Query, q.OperationName, q.Variables)
	if err := r.Context().Err(); err != nil {
		return err
	}
	// the status is what says that it is worth trying again
	if caller.failed != nil && fault.Is(caller.failed, fault.Exhausted) {
		return caller.failed
	}
	if failed = caller.failed; failed != nil {
		v.Failed(failed)
	} else if len(response.Errors) > 0 {
		failed = fault.New(fault.Invalid, "invalid query: %s", response.Errors[0].Message)
		v.Failed(failed)
	}
	header(w.Header(), queryResponse)
	if len(response.Errors) > 0 || len(response.Data) == 0 {
		return json.NewEncoder(w).Encode(response)
	}
	_, err = w.Write(slices.Concat([]byte(`{"data":`), response.Data, []byte("}\n")))
	return err
}

// callerKey is where the resolvers of a request, whose only argument is a context, find who asks.
type callerKey struct{}

// caller is who asks, and what was asked so far.
type caller struct {
	search.Visitor

	mu       sync.Mutex
	searches int
	failed   error // a search
}

func callerOf(ctx context.Context) *caller { return ctx.Value(callerKey{}).(*caller) }

// Reader is the visitor's, for resolvers that run at the same time.
func (c *caller) Reader() search.Readable {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.Visitor.Reader()
}

// enter counts what is dear.
func (c *caller) enter() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.searches++; c.searches > maxSearches {
		return fault.New(fault.Invalid, "too many searches and lists in one request: at most %d", maxSearches)
	}
	return nil
}

// fail makes an error one that a caller may read.
func (c *caller) fail(err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failed = err
	return errors.New(fault.Message(err))
}
