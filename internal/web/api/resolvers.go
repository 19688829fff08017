package api

import (
	"context"
	"encoding/json"
	"fmt"
	"html"
	"log/slog"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"

	"github.com/graph-gophers/graphql-go"
	gqlerrors "github.com/graph-gophers/graphql-go/errors"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/search"
	"github.com/packhorse-git/packhorse/internal/search/query"
	"github.com/packhorse-git/packhorse/internal/search/schema"
)

// panics of resolvers become errors of the fields, and the request's in the log.
type panics struct{}

func (panics) MakePanicError(ctx context.Context, value any) *gqlerrors.QueryError {
	return gqlerrors.Errorf("%s",
		callerOf(ctx).fail(fault.New(fault.Internal, "internal error; see the server's log")))
}

func (panics) LogPanic(ctx context.Context, value any) {
	c := callerOf(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.Note(slog.String("panic", fmt.Sprint(value)), slog.String("stack", string(debug.Stack())))
}

type site struct {
	ID             graphql.ID
	ProductVersion string
	BuildVersion   string
}

// Site tells the version. Sourcegraph's programs read the date in buildVersion, and find out by it what the server can
// do.
func (s *rootResolver) Site() site {
	return site{ID: "site", ProductVersion: s.api.Version, BuildVersion: "0_" + s.api.Built.UTC().Format("2006-01-02") +
		"_packhorse"}
}

type user struct {
	ID          graphql.ID
	Username    string
	DisplayName *string
	URL         string
	SiteAdmin   bool
}

// CurrentUser tells who asks.
func (s *rootResolver) CurrentUser(ctx context.Context) *user {
	name := callerOf(ctx).Name()
	if name == "" {
		return nil
	}
	return &user{ID: graphql.ID(name), Username: name, URL: "/"}
}

type repository struct{ path string }

func (r repository) ID() graphql.ID               { return graphql.ID(r.path) }
func (r repository) Name() string                 { return strings.ToValidUTF8(schema.Name(r.path), "\ufffd") }
func (r repository) Description() string          { return "" }
func (r repository) ExternalURLs() []externalLink { return []externalLink{} }
func (r repository) Label() markdown {
	return markdown{HTML: html.EscapeString(r.Name()), Text: r.Name()}
}
func (r repository) URL() string { return schema.RepositoryURL(r.path) }

type externalLink struct {
	URL         string
	ServiceKind *string
	ServiceType *string
}

type markdown struct{ HTML, Text string }

type connection struct {
	Nodes      []repository
	TotalCount *int32
	PageInfo   pageInfo
}

type pageInfo struct {
	HasNextPage bool
	EndCursor   *string
}

// Repositories lists those that the caller may read, in the order of their paths.
func (s *rootResolver) Repositories(ctx context.Context, args struct {
	First        *int32
	After, Query *string
}) (*connection, error) {
	c := callerOf(ctx)
	if err := c.enter(); err != nil {
		return nil, err
	}
	var all []git.RepoPath
	wanted := ""
	if args.Query != nil {
		wanted = strings.ToLower(*args.Query)
	}
	if s.api.APIOptions.Repositories != nil {
		if err := s.api.APIOptions.Repositories.Repositories(ctx, func(path git.RepoPath) error {
			if strings.Contains(strings.ToLower(path.String()), wanted) {
				all = append(all, path)
			}
			return nil
		}); err != nil {
			return nil, c.fail(err)
		}
	}
	paths, err := readable(all, c.Reader())
	if err != nil {
		return nil, c.fail(err)
	}
	slices.Sort(paths)
	list := &connection{Nodes: []repository{}}
	total := int32(len(paths))
	list.TotalCount = &total
	from, most := 0, maxRepos
	if args.After != nil {
		from, _ = slices.BinarySearch(paths, *args.After+"\x00")
	}
	if args.First != nil {
		most = min(max(int(*args.First), 0), maxRepos)
	}
	for _, path := range paths[from:min(len(paths), from+most)] {
		list.Nodes = append(list.Nodes, repository{path})
		list.PageInfo.EndCursor = &path
	}
	list.PageInfo.HasNextPage = from+len(list.Nodes) < len(paths)
	return list, nil
}

// readable gives the names of those repositories that may be read.
func readable(all []git.RepoPath, may search.Readable) ([]string, error) {
	var allowed []bool
	if may != nil {
		var whole bool
		if allowed, whole = may(all); !whole {
			return nil, fault.Retry(fault.Unavailable, fault.RetrySoon,
				"the server could not determine in time which repositories you may read; try again")
		}
	}
	var names []string
	for i, path := range all {
		if may == nil || allowed[i] {
			names = append(names, path.String())
		}
	}
	return names, nil
}

// searched is a search that was made.
type searched struct{ Results *results }

// results collects what a search finds.
type results struct {
	summary search.Summary
	list    []result
	text    []byte // of list, with commas between
	full    bool
	alert   *schema.Alert
}

// Search finds what a query asks for. What is wrong with the query is an alert.
func (s *rootResolver) Search(ctx context.Context, args struct {
	Query       string
	Version     string
	PatternType *string
}) (*searched, error) {
	c, found := callerOf(ctx), &results{}
	if err := c.enter(); err != nil {
		return nil, err
	}
	q := asked{text: args.Query}
	if args.PatternType != nil {
		var ok bool
		if q.kind, ok = query.KindOf(*args.PatternType); !ok {
			q.kind = query.Auto
		}
	}
	request, err := s.api.request(q, c, schema.GraphQL)
	if err == nil {
		found.summary, err = s.api.Searcher.Search(ctx, request, found)
		if found.full && fault.Is(err, fault.Exhausted) {
			found.summary.Limited, err = true, nil
		}
		c.mu.Lock()
		note(c, found.summary)
		c.mu.Unlock()
	}
	switch {
	case fault.Is(err, fault.Invalid):
		alert := newAlert(q.text, err)
		found.alert = &alert
	case err != nil:
		return nil, c.fail(err)
	}
	if err := json.Unmarshal(slices.Concat([]byte{'['}, found.text, []byte{']'}), &found.list); err != nil {
		return nil, c.fail(err)
	}
	found.text = nil
	for i := range found.list {
		found.list[i].File.Commit.repository = found.list[i].Repository.Name
	}
	return &searched{found}, nil
}

// Matches implements search.Sink.
func (r *results) Matches(b search.Batch) error {
	if len(b.JSON) == 0 {
		return nil
	}
	if len(r.text)+len(b.JSON) > maxLists {
		r.full = true
		return fault.New(fault.Exhausted, "results too long: more than %d bytes", maxLists)
	}
	if len(r.text) > 0 {
		r.text = append(r.text, ',')
	}
	r.text = append(r.text, b.JSON...)
	return nil
}

// Progress implements search.Sink.
func (r *results) Progress(search.Summary) error { return nil }

func (r *results) Results() []*result {
	list := make([]*result, len(r.list))
	for i := range r.list {
		list[i] = &r.list[i]
	}
	return list
}

func (r *results) LimitHit() bool    { return r.summary.Limited }
func (r *results) MatchCount() int32 { return int32(r.summary.Matches) }

// an older name: what was found, not the files that have it
func (r *results) ResultCount() int32         { return r.MatchCount() }
func (r *results) ElapsedMilliseconds() int32 { return int32(r.summary.Elapsed.Milliseconds()) }
func (r *results) RepositoriesCount() int32   { return int32(r.summary.Searched) }

func (r *results) ApproximateResultCount() string {
	n := strconv.Itoa(r.summary.Matches)
	if r.summary.Limited {
		n += "+"
	}
	return n
}

func (r *results) Cloning() []repository  { return []repository{} }
func (r *results) Timedout() []repository { return []repository{} }

// Missing are those that were not searched.
func (r *results) Missing() []repository {
	list := []repository{}
	for _, path := range r.summary.Missing {
		list = append(list, repository{path})
	}
	return list
}

type alert struct {
	Title           string
	Description     *string
	ProposedQueries *[]proposed
}

type proposed struct {
	Description *string
	Query       string
}

func (r *results) Alert() *alert {
	if r.alert == nil {
		return nil
	}
	list := []proposed{}
	for _, p := range r.alert.ProposedQueries {
		list = append(list, proposed{&p.Description, p.Query})
	}
	return &alert{Title: r.alert.Title, Description: &r.alert.Description, ProposedQueries: &list}
}

// result is one of either kind, as wire.GraphQL writes it. What is asked for of each of thousands is in fields: they
// cost less than methods.
type result struct {
	Typename string `json:"__typename"`
	Name     string // of a repository
	fileMatch
}

type fileMatch struct {
	Repository  repositoryOf
	File        blob
	LineMatches []line
	Symbols     []definition
}

// repositoryOf is the repository of a file.
type repositoryOf struct{ Name, URL string }

func (r repositoryOf) ID() graphql.ID               { return repository{r.Name}.ID() }
func (r repositoryOf) Description() string          { return "" }
func (r repositoryOf) ExternalURLs() []externalLink { return []externalLink{} }
func (r repositoryOf) Label() markdown              { return repository{r.Name}.Label() }

type blob struct {
	Name, Path, URL, Content string
	Commit                   gitCommit
}

type line struct {
	Preview          string
	LineNumber       int32
	OffsetAndLengths [][]int32
	LimitHit         bool
}

type definition struct {
	Name          string
	ContainerName *string
	Kind          string
	URL           string
}

type gitCommit struct{ OID, repository string }

func (c gitCommit) URL() string            { return "" }
func (c gitCommit) Subject() string        { return "" }
func (c gitCommit) Repository() repository { return repository{c.repository} }
func (c gitCommit) Author() signature      { return signature{} }

func (r *result) ToFileMatch() (*fileMatch, bool) { return &r.fileMatch, r.Typename == "FileMatch" }
func (r *result) ToRepository() (*repository, bool) {
	return &repository{r.Name}, r.Typename == "Repository"
}
func (r *result) ToCommitSearchResult() (*commitResult, bool) { return nil, false }

// commitResult is what no search has.
type commitResult struct{}

func (commitResult) Label() markdown              { return markdown{} }
func (commitResult) URL() string                  { return "" }
func (commitResult) Commit() gitCommit            { return gitCommit{} }
func (commitResult) MessagePreview() *highlighted { return nil }
func (commitResult) DiffPreview() *highlighted    { return nil }
func (commitResult) Matches() []commitMatch       { return []commitMatch{} }

type signature struct {
	Date   string
	Person struct{ DisplayName string }
}

type highlighted struct {
	Value      string
	Highlights []highlight
}

type highlight struct{ Line, Character, Length int32 }

type commitMatch struct {
	URL        string
	Body       markdown
	Highlights []highlight
}
