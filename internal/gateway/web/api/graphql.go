package api

import (
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"runtime/debug"
	"sync/atomic"

	"github.com/vektah/gqlparser/v2"
	"github.com/vektah/gqlparser/v2/ast"
	"github.com/vektah/gqlparser/v2/gqlerror"
	"github.com/vektah/gqlparser/v2/parser"
	"github.com/vektah/gqlparser/v2/validator"
	"github.com/vektah/gqlparser/v2/validator/rules"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/search"
)

//go:embed schema.graphql
var schemaText string

// Limits of a GraphQL request: several times what src sends.
const (
	maxDocument = 32 << 10 // bytes; the search query is a variable
	maxBody     = 1 << 20
	maxSize     = 2000 // fields, fragments, directives, variables and values; see measure
	maxDepth    = 15   // of fields in fields
	maxErrors   = 10   // in a response
	maxSearches = 4    // and lists of repositories
	maxLists    = 64 << 20
	maxAllLists = 4 * maxLists // of all requests at the same time
	maxResponse = 4 * maxLists
	maxRepos    = 10_000
)

// graphQL answers GraphQL requests. Safe for concurrent use.
type graphQL struct {
	schema      *ast.Schema
	rules       *rules.Rules
	maxResponse int
	maxAllLists int64
	lists       atomic.Int64 // bytes of results that requests hold now
}

func newGraphQL() (*graphQL, error) {
	schema, err := gqlparser.LoadSchema(&ast.Source{Name: "schema.graphql", Input: schemaText})
	if err != nil {
		return nil, err
	}
	set := rules.NewDefaultRules()
	// selectFields checks this: the rule's time grows with the square of the number of fields.
	set.RemoveRule(rules.OverlappingFieldsCanBeMergedRule.Name)
	// Suggestions compare each unknown name, which may be long, with all known ones.
	set.ReplaceRule(rules.FieldsOnCorrectTypeRule.Name, rules.FieldsOnCorrectTypeRuleWithoutSuggestions.RuleFunc)
	set.ReplaceRule(rules.KnownArgumentNamesRule.Name, rules.KnownArgumentNamesRuleWithoutSuggestions.RuleFunc)
	set.ReplaceRule(rules.KnownTypeNamesRule.Name, rules.KnownTypeNamesRuleWithoutSuggestions.RuleFunc)
	set.ReplaceRule(rules.ScalarLeafsRule.Name, rules.ScalarLeafsRuleWithoutSuggestions.RuleFunc)
	set.ReplaceRule(rules.ValuesOfCorrectTypeRule.Name, rules.ValuesOfCorrectTypeRuleWithoutSuggestions.RuleFunc)
	return &graphQL{schema: schema, rules: set, maxResponse: maxResponse, maxAllLists: maxAllLists}, nil
}

// graphQLRequest is the body of a request.
type graphQLRequest struct {
	Query         string         `json:"query"`
	OperationName string         `json:"operationName"`
	Variables     map[string]any `json:"variables"`
}

// graphQLResponse is the body of a response. Data is missing if the request was not executed.
type graphQLResponse struct {
	Errors gqlerror.List   `json:"errors,omitempty"`
	Data   json.RawMessage `json:"data,omitempty"`
}

// parse returns the operation to execute and the values of its variables, or the errors of the request.
func (g *graphQL) parse(q graphQLRequest) (*ast.OperationDefinition, map[string]any, gqlerror.List) {
	fail := func(format string, args ...any) (*ast.OperationDefinition, map[string]any, gqlerror.List) {
		return nil, nil, gqlerror.List{gqlerror.Errorf(format, args...)}
	}
	if len(q.Query) > maxDocument {
		return fail("query document too long: at most %d bytes", maxDocument)
	}
	document, err := parser.ParseQuery(&ast.Source{Input: q.Query})
	if err != nil {
		return nil, nil, listErrors(err)
	}
	m := measure{document.Fragments, map[string]*extent{}}
	size, err := m.document(document)
	switch {
	case err != nil:
		return nil, nil, listErrors(err)
	case size.depth > maxDepth:
		return fail("query too deep: at most %d levels of fields", maxDepth)
	case size.parts > maxSize:
		return fail("query too large: at most %d fields, fragments, directives, variables and values", maxSize)
	}
	if list := validator.ValidateWithRules(g.schema, document, g.rules); len(list) > 0 {
		return nil, nil, list[:min(len(list), maxErrors)]
	}
	operation := document.Operations.ForName(q.OperationName)
	if operation == nil {
		return fail("no operation with the name %.40q: use operationName", q.OperationName)
	}
	variables, err := validator.VariableValues(g.schema, operation, q.Variables)
	if err != nil {
		return nil, nil, listErrors(err)
	}
	return operation, variables, nil
}

// listErrors makes the errors of a response from one of package gqlparser.
func listErrors(err error) gqlerror.List {
	e, ok := errors.AsType[*gqlerror.Error](err)
	if !ok {
		return gqlerror.List{gqlerror.Wrap(err)}
	}
	if len(e.Path) > 0 { // it is the path of a variable: in a response it would be that of a field
		e.Message, e.Path = fmt.Sprintf("%s: %s", e.Path, e.Message), nil
	}
	return gqlerror.List{e}
}

// serveGraphQL answers POST /.api/graphql. Errors are in the response, except for overload.
func (a *API) serveGraphQL(w http.ResponseWriter, r *http.Request, v search.Visitor) (err error) {
	var failed error // reported in the response
	defer func() { a.metrics.count("graphql", cmp.Or(err, failed)) }()
	if r.Method != http.MethodPost {
		return refuseMethod(w, "POST")
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
	c := &caller{Visitor: v, api: a}
	defer func() { a.graphql.lists.Add(-c.lists) }()
	response := a.graphql.answer(r.Context(), c, q)
	if err := r.Context().Err(); err != nil {
		return err
	}
	// The status shows clients that another attempt is worthwhile.
	if c.failed != nil && fault.Is(c.failed, fault.Exhausted) {
		return c.failed
	}
	if failed = c.failed; failed == nil && len(response.Errors) > 0 {
		failed = fault.New(fault.Invalid, "invalid query: %s", response.Errors[0].Message)
	}
	if failed != nil {
		v.Failed(failed)
	}
	header(w.Header(), "application/json; charset=utf-8")
	if len(response.Errors) > 0 {
		return json.NewEncoder(w).Encode(response)
	}
	for _, part := range [][]byte{[]byte(`{"data":`), response.Data, []byte("}\n")} {
		if _, err = w.Write(part); err != nil {
			return err
		}
	}
	return nil
}

func (g *graphQL) answer(ctx context.Context, c *caller, q graphQLRequest) graphQLResponse {
	operation, variables, list := g.parse(q)
	if len(list) > 0 {
		return graphQLResponse{Errors: list}
	}
	e := execution{schema: g.schema, variables: variables, roots: c.roots(), recovered: c.recovered, limit: g.maxResponse}
	if err := e.run(ctx, operation); err != nil {
		return graphQLResponse{Errors: listErrors(err)}
	}
	return graphQLResponse{e.errors, e.out}
}

// caller is the caller of one request and the use of its limits so far. Not safe for concurrent use.
type caller struct {
	search.Visitor
	api      *API
	searches int
	lists    int64 // bytes of results, counted in graphQL.lists
	failed   error // the error of a field
}

func (c *caller) roots() map[string]rootField {
	return map[string]rootField{"site": c.site, "currentUser": c.currentUser, "search": c.search,
		"repositories": c.repositories}
}

// countSearch counts the expensive fields.
func (c *caller) countSearch() error {
	if c.searches++; c.searches > maxSearches {
		return fault.New(fault.Invalid, "too many searches and lists in one request: at most %d", maxSearches)
	}
	return nil
}

// reserve counts n bytes of results. It reports false if all requests together hold too many. Anonymous callers get
// only half of the maximum.
func (c *caller) reserve(n int) bool {
	g := c.api.graphql
	limit := g.maxAllLists
	if c.Name() == "" {
		limit /= 2
	}
	if g.lists.Add(int64(n)) > limit {
		g.lists.Add(-int64(n))
		return false
	}
	c.lists += int64(n)
	return true
}

// recovered logs a panic.
func (c *caller) recovered(value any) error {
	c.Note(slog.String("panic", fmt.Sprint(value)), slog.String("stack", string(debug.Stack())))
	c.failed = fault.New(fault.Internal, "internal error; see the server's log")
	return c.failed
}
