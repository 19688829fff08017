package web

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway/web/page"
	"github.com/packhorse-git/packhorse/internal/search"
	"github.com/packhorse-git/packhorse/internal/search/query"
	"github.com/packhorse-git/packhorse/internal/search/schema"
)

const (
	pageResults    = 50
	morePage       = 500 // results of a page that shows more
	pageTime       = 10 * time.Second
	maxPageQuery   = 10_000  // bytes; the API accepts longer queries
	maxPageResults = 8 << 20 // bytes
)

// example is a query or a filter and its meaning.
type example struct{ Query, Says string }

var examples = []example{
	{`http.Handler lang:go`, "both words, in Go"},
	{`"not found" file:\.md$`, "a phrase, in Markdown files"},
	{`sym:New.*Server`, "definitions with such a name"},
	{`repo:team/ TODO -file:vendor/`, "some repositories, without some files"},
	{`func\s+\w+Context\( count:200`, "a regular expression, and more results than usual"},
	{`select:repo lang:rust`, "repositories with code in Rust"},
}

var filters = []example{
	{"repo:PATTERN", "repositories whose path matches a regular expression; -repo: excludes them. Short form: r:"},
	{"file:PATTERN", "files whose path matches a regular expression. Short form: f:"},
	{"lang:NAME", "files in a language"},
	{"sym:PATTERN", "definitions: functions, types, variables"},
	{"content:PATTERN", "text that looks like a filter"},
	{"branch:NAME", "a branch other than the default one, if it is indexed"},
	{"case:yes", "case-sensitive, like a query with an uppercase letter"},
	{"a and (b or not c)", "operators; and can be omitted"},
	{"count:N, count:all", "maximum number of results"},
	{"timeout:DURATION", "maximum duration, as in 5s; above 10s only after signing in"},
	{"select:repo, select:file", "only the names of repositories or files with results"},
}

func (p *Pages) search(w http.ResponseWriter, r *http.Request, v Visitor) error {
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return p.Fail(w, r, v, fault.New(fault.Invalid, "The address of this page has an invalid query string."))
	}
	text := strings.TrimSpace(strings.ToValidUTF8(values.Get("q"), "\ufffd"))
	pg := page.Head{Kind: "search", Title: "Search code", Query: text}
	pg = p.HeadFor(r, v, pg)
	if text == "" {
		pg.Focus = true
		return p.Send(w, r, http.StatusOK, "search", p.Frame(pg, startView()))
	}
	title, _ := page.Shorten(text, 60)
	pg.Title = title
	limit := pageResults
	if n, err := strconv.Atoi(values.Get("n")); err == nil && n > limit {
		limit = min(n, morePage)
	}
	status := http.StatusOK
	result, err := p.find(r.Context(), v, text, limit)
	if err != nil {
		if kind := fault.KindOf(err); kind != fault.Invalid && kind != fault.Unavailable {
			return err
		}
		status = http.StatusBadRequest
		if fault.Is(err, fault.Unavailable) {
			status = http.StatusServiceUnavailable
			w.Header().Set("Retry-After", fault.RetryHeader(fault.RetryAfter(err)))
		}
		result = &found{Error: page.Sentence(fault.Message(err))}
		result.point(text, err)
	}
	if result.MoreCount > 0 {
		result.MoreURL = page.SearchURL(text) + "&n=" + strconv.Itoa(result.MoreCount)
	}
	return p.Send(w, r, status, "search", p.Frame(pg, result.view()))
}

// errFull ends a search whose results are too large for a page.
var errFull = errors.New("the page is full")

// collector collects the results of a search.
type collector struct {
	found *found
	bytes int
}

func (c *collector) Matches(b search.Batch) error {
	if c.bytes += len(b.JSON); c.bytes > maxPageResults {
		return errFull
	}
	return c.found.add(b.JSON)
}

func (c *collector) Progress(search.Summary) error { return nil }

// find runs a search.
func (p *Pages) find(ctx context.Context, v Visitor, text string, limit int) (*found, error) {
	if len(text) > maxPageQuery {
		return nil, fault.New(fault.Invalid, "query too long: this page accepts up to %d bytes, and the API more",
			maxPageQuery)
	}
	parsed, err := query.Parse(text)
	if err != nil {
		return nil, err
	}
	q := *parsed // a copy without limits: they are in the request
	if p.searcher == nil {
		return nil, fault.New(fault.Unavailable, "this server has no search")
	}
	hasCount := q.Count != 0
	if hasCount {
		limit = morePage
	}
	if q.Count > 0 {
		limit = min(q.Count, morePage)
	}
	timeout := cmp.Or(q.Timeout, pageTime)
	if v.Name() == "" {
		timeout = min(timeout, pageTime)
	}
	q.Count, q.Timeout = 0, 0
	c := &collector{found: newFound()}
	summary, err := p.searcher.Search(ctx, search.Request{Query: &q, Format: schema.API, May: v.Reader(), Limit: limit,
		Timeout: timeout}, c)
	if errors.Is(err, errFull) {
		c.found.Notes = append(c.found.Notes, "The results are too large for a page: the rest is not shown.")
		err = nil
	}
	if err != nil {
		return nil, err
	}
	v.Note(slog.Int("results", summary.Results))
	c.found.end(summary)
	if summary.Limited && limit < morePage && !hasCount {
		c.found.MoreCount = morePage
	}
	return c.found, nil
}

// point shows the position of an error in the query.
func (f *found) point(text string, err error) {
	at, ok := errors.AsType[*query.Error](err)
	if !ok {
		return
	}
	const around = 60
	from := min(max(at.Offset, 0), len(text))
	to := min(from+max(at.Length, 1), len(text))
	before, after := text[:from], text[to:]
	if len(before) > around {
		before = "…" + strings.ToValidUTF8(before[len(before)-around:], "")
	}
	if short, cut := page.Shorten(after, around); cut {
		after = short + "…"
	}
	f.Error = page.Sentence(at.Message) // without a quotation: the position is shown
	f.Pointed, f.Before, f.At, f.After = true, oneLine(before), oneLine(text[from:to]), oneLine(after)
	f.Indent = strings.Repeat(" ", utf8.RuneCountInString(f.Before))
}

// oneLine replaces invisible characters by spaces.
func oneLine(text string) string {
	return strings.Map(func(r rune) rune {
		if page.Deceives(r) || r == '\t' {
			return ' '
		}
		return r
	}, text)
}

// elapsed formats a duration for a page.
func elapsed(d time.Duration) string {
	switch {
	case d < 10*time.Millisecond:
		return fmt.Sprintf("%.1f ms", d.Seconds()*1000)
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	}
	return fmt.Sprintf("%.1f s", d.Seconds())
}
