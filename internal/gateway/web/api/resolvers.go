package api

import (
	"bytes"
	"context"
	"encoding/json"
	"html"
	"slices"
	"strconv"
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/search"
	"github.com/packhorse-git/packhorse/internal/search/query"
	"github.com/packhorse-git/packhorse/internal/search/schema"
)

// site returns the server's version. Sourcegraph's programs read the date in buildVersion to find out what the server
// supports.
func (c *caller) site(context.Context, map[string]any) (any, error) {
	return object{"id": "site", "productVersion": c.api.Version,
		"buildVersion": "0_" + c.api.Built.UTC().Format("2006-01-02") + "_packhorse"}, nil
}

// currentUser returns the caller, or null for anonymous ones.
func (c *caller) currentUser(context.Context, map[string]any) (any, error) {
	name := c.Name()
	if name == "" {
		return nil, nil
	}
	return object{"id": name, "username": name, "url": "/", "siteAdmin": false}, nil
}

func newRepository(path string) object {
	name := strings.ToValidUTF8(schema.Name(path), "\ufffd")
	return object{"id": path, "name": name, "url": schema.RepositoryURL(path), "description": "", "externalURLs": []any{},
		"label": object{"html": html.EscapeString(name), "text": name}}
}

// repositories lists the repositories that the caller may read, sorted by path.
func (c *caller) repositories(ctx context.Context, arguments map[string]any) (any, error) {
	if err := c.countSearch(); err != nil {
		return nil, err
	}
	paths, err := c.listRepositories(ctx, stringOf(arguments["query"]))
	if err != nil {
		c.failed = err
		return nil, err
	}
	from := 0
	if after, ok := arguments["after"].(string); ok {
		from, _ = slices.BinarySearch(paths, after+"\x00")
	}
	most := maxRepos
	if first, ok := integerOf(arguments["first"]); ok {
		most = min(max(first, 0), maxRepos)
	}
	page, nodes, cursor := paths[from:min(len(paths), from+most)], []any{}, any(nil)
	for _, path := range page {
		nodes = append(nodes, newRepository(path))
		cursor = path
	}
	return object{"nodes": nodes, "totalCount": len(paths),
		"pageInfo": object{"hasNextPage": from+len(page) < len(paths), "endCursor": cursor}}, nil
}

// listRepositories returns the sorted paths of those repositories whose path contains text, in any case.
func (c *caller) listRepositories(ctx context.Context, text string) ([]string, error) {
	if c.api.Repositories == nil {
		return nil, nil
	}
	var all []git.RepoPath
	text = strings.ToLower(text)
	if err := c.api.Repositories.Repositories(ctx, func(path git.RepoPath) error {
		if strings.Contains(strings.ToLower(path.String()), text) {
			all = append(all, path)
		}
		return nil
	}); err != nil {
		return nil, err
	}
	may := c.Reader()
	var allowed []bool
	if may != nil {
		var complete bool
		if allowed, complete = may(all); !complete {
			return nil, fault.Retry(fault.Unavailable, fault.RetrySoon,
				"the server could not determine in time which repositories you may read; try again")
		}
	}
	var paths []string
	for i, path := range all {
		if may == nil || allowed[i] {
			paths = append(paths, path.String())
		}
	}
	slices.Sort(paths)
	return paths, nil
}

// search searches. An invalid query is an alert in the result.
func (c *caller) search(ctx context.Context, arguments map[string]any) (any, error) {
	if err := c.countSearch(); err != nil {
		return nil, err
	}
	q := parameters{text: stringOf(arguments["query"])}
	q.kind, _ = query.KindOf(stringOf(arguments["patternType"]))
	request, err := c.api.request(q, c, schema.GraphQL)
	found := &collector{reserve: c.reserve}
	var summary search.Summary
	if err == nil {
		summary, err = c.api.Searcher.Search(ctx, request, found)
		if found.full && fault.Is(err, fault.Exhausted) {
			summary.Limited, err = true, nil
		}
		note(c, summary)
	}
	var alert any
	if fault.Is(err, fault.Invalid) {
		alert, err = alertObject(newAlert(q.text, err)), nil
	}
	var list []any
	if err == nil {
		list, err = found.objects()
	}
	if err != nil {
		c.failed = err
		return nil, err
	}
	return object{"results": newResults(summary, list, alert)}, nil
}

func newResults(s search.Summary, list []any, alert any) object {
	missing := []any{}
	for _, path := range s.Missing {
		missing = append(missing, newRepository(path))
	}
	approximate := strconv.Itoa(s.Matches)
	if s.Limited {
		approximate += "+"
	}
	return object{"results": list, "limitHit": s.Limited, "cloning": []any{}, "missing": missing, "timedout": []any{},
		"matchCount": s.Matches, "resultCount": s.Matches, // the older name: also a number of matches
		"approximateResultCount": approximate, "elapsedMilliseconds": s.Elapsed.Milliseconds(),
		"repositoriesCount": s.Searched, "alert": alert}
}

func alertObject(a schema.Alert) object {
	proposed := []any{}
	for _, p := range a.ProposedQueries {
		proposed = append(proposed, object{"description": p.Description, "query": p.Query})
	}
	return object{"title": a.Title, "description": a.Description, "proposedQueries": proposed}
}

// collector collects the results of a search.
type collector struct {
	reserve func(n int) bool // counts n bytes, or reports false
	text    []byte           // JSON objects with commas between them
	full    bool
}

// Matches implements search.Sink.
func (c *collector) Matches(b search.Batch) error {
	if len(b.JSON) == 0 {
		return nil
	}
	if len(c.text)+len(b.JSON) > maxLists {
		c.full = true
		return fault.New(fault.Exhausted, "results too long: more than %d bytes", maxLists)
	}
	if !c.reserve(len(b.JSON)) {
		return fault.Retry(fault.Exhausted, fault.RetrySoon,
			"too many searches with long results at the same time; try again")
	}
	if len(c.text) > 0 {
		c.text = append(c.text, ',')
	}
	c.text = append(c.text, b.JSON...)
	return nil
}

// Progress implements search.Sink.
func (c *collector) Progress(search.Summary) error { return nil }

// objects decodes the results. schema.GraphQL names the fields as the GraphQL schema does and omits those that are the
// same for all.
func (c *collector) objects() (list []any, err error) {
	list = []any{}
	decoder := json.NewDecoder(bytes.NewReader(slices.Concat([]byte{'['}, c.text, []byte{']'})))
	decoder.UseNumber()
	if err := decoder.Decode(&list); err != nil {
		return nil, err
	}
	repositories := map[string]object{}
	repository := func(o object) object {
		name := stringOf(o["name"])
		if repositories[name] == nil {
			repositories[name] = newRepository(name)
		}
		return repositories[name]
	}
	for i, element := range list {
		result, _ := element.(object)
		if result["__typename"] == "Repository" {
			full := newRepository(stringOf(result["name"]))
			full["__typename"] = "Repository"
			list[i] = full
			continue
		}
		of, _ := result["repository"].(object)
		file, _ := result["file"].(object)
		commit, _ := file["commit"].(object)
		if of == nil || commit == nil {
			return nil, fault.New(fault.Internal, "invalid search result: no repository or commit")
		}
		result["repository"] = repository(of)
		commit["repository"], commit["url"], commit["subject"] = result["repository"], "", ""
		commit["author"] = object{"date": "", "person": object{"displayName": ""}}
	}
	return list, nil
}

func stringOf(value any) string {
	text, _ := value.(string)
	return text
}

// integerOf reads an argument of type Int: a literal is an int64, a variable has the type that JSON gave it.
func integerOf(value any) (int, bool) {
	switch value := value.(type) {
	case int64:
		return int(value), true
	case float64:
		return int(min(max(value, -1), maxRepos)), true
	case string:
		n, err := strconv.Atoi(value)
		return n, err == nil
	}
	return 0, false
}
