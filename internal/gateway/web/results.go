package web

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/packhorse-git/packhorse/internal/gateway/web/page"
	"github.com/packhorse-git/packhorse/internal/search"
	"github.com/packhorse-git/packhorse/internal/search/query"
	"github.com/packhorse-git/packhorse/internal/search/schema"
)

const (
	shownLines = 8   // of a file
	shownBytes = 400 // of a line
	leadBytes  = 32  // of them before the first hit
)

// match is a result in the format of the API.
type match struct {
	Type       string      `json:"type"` // content, path, symbol or repo
	Repository string      `json:"repository"`
	Path       string      `json:"path"`
	Commit     string      `json:"commit"`
	URL        string      `json:"url"` // path of the file's page; it keeps bytes that are U+FFFD in Path
	Branches   []string    `json:"branches"`
	Language   string      `json:"language"`
	Unindexed  bool        `json:"unindexed"`
	PathRanges [][2]int    `json:"path_ranges"` // code points of the path
	Lines      []matchLine `json:"lines"`
}

// matchLine is a line with matches, or one next to it.
type matchLine struct {
	Number int      `json:"line"` // from 1
	Text   string   `json:"text"`
	Ranges [][2]int `json:"ranges"` // code points of the text
	Symbol string   `json:"symbol"`
}

// found is the content of the page with the results of a search.
type found struct {
	Thing, Things  string // the noun for results
	Results        int
	Matches        int
	Searched       int
	Elapsed        string
	MoreURL        string
	MoreCount      int
	Notes          []string
	Remark         string // below the results
	Repos          []*repoResults
	Names          []nameResult // of repositories
	Fresh          []*freshness
	Nothing        bool
	Error          string
	Pointed        bool // the error has a position in the query
	Before, At     string
	After, Indent  string
	byName         map[string]*repoResults
	freshByName    map[string]*freshness
	files, rawSize int
}

type repoResults struct {
	Name, Anchor string
	Fresh        *freshness
	Files        []fileResult
}

type fileResult struct {
	URL       string
	Dir, Base []page.Piece
	About     string
	Lines     []lineResult
	Rest      int // lines that are not shown
	branches  []string
}

type lineResult struct {
	Number  int
	URL     string
	Pieces  []page.Piece
	Kind    string // of a symbol
	Gap     bool   // lines before it are omitted
	Context bool   // it has no match
}

type nameResult struct {
	Name, URL  string
	Fresh      *freshness
	repository string
}

// freshness describes which commit of a repository was searched.
type freshness struct {
	Repository, Anchor string
	Branch, Short      string
	Class, Label, Says string
}

func newFound() *found {
	return &found{Thing: "file", Things: "files", byName: map[string]*repoResults{}, freshByName: map[string]*freshness{}}
}

// add adds a batch of results.
func (f *found) add(batch []byte) error {
	var matches []match
	if err := json.Unmarshal(slices.Concat([]byte("["), batch, []byte("]")), &matches); err != nil {
		return err
	}
	for i := range matches {
		f.addMatch(&matches[i])
	}
	return nil
}

func (f *found) addMatch(m *match) {
	if m.Type == "repo" {
		f.Thing, f.Things = "repository", "repositories"
		f.Names = append(f.Names, nameResult{Name: schema.Name(m.Repository), repository: m.Repository,
			URL: page.SearchURL(query.InRepository(m.Repository) + " select:file")})
		return
	}
	r := f.byName[m.Repository]
	if r == nil {
		r = &repoResults{Name: schema.Name(m.Repository), Anchor: "r" + strconv.Itoa(len(f.Repos)+1)}
		f.byName[m.Repository] = r
		f.Repos = append(f.Repos, r)
	}
	r.Files = append(r.Files, newFileResult(m))
	f.files++
}

func newFileResult(m *match) fileResult {
	r := fileResult{URL: m.URL, About: m.Language, branches: m.Branches}
	r.Dir, r.Base = markedPath(m.Path, inBytes(m.Path, m.PathRanges))
	hits, last := 0, 0
	for _, line := range m.Lines {
		if len(line.Ranges) > 0 {
			if hits++; hits > shownLines {
				r.Rest++
				continue
			}
		} else if hits >= shownLines {
			continue
		}
		l := lineResult{
			Number: line.Number, URL: r.URL + "#L" + strconv.Itoa(line.Number),
			Pieces: marked(line.Text, inBytes(line.Text, line.Ranges)), Kind: line.Symbol,
			Gap: last > 0 && line.Number > last+1, Context: len(line.Ranges) == 0,
		}
		last = line.Number
		r.Lines = append(r.Lines, l)
	}
	return r
}

// inBytes converts ranges of code points into ranges of bytes.
func inBytes(text string, ranges [][2]int) [][2]int {
	if len(ranges) == 0 {
		return nil
	}
	points := make([]int, 0, utf8.RuneCountInString(text)+1) // offset of each
	for i := range text {
		points = append(points, i)
	}
	points = append(points, len(text))
	at := func(n int) int { return points[min(max(n, 0), len(points)-1)] }
	bytes := make([][2]int, len(ranges))
	for i, r := range ranges {
		bytes[i] = [2]int{at(r[0]), at(r[1])}
	}
	return bytes
}

// marked splits a line at its matches. Of a long line it keeps the part around the first match.
func marked(text string, ranges [][2]int) (pieces []page.Piece) {
	text = strings.TrimRight(text, "\r\n")
	at := 0
	if len(ranges) > 0 && len(text) > shownBytes && ranges[0][0] > leadBytes {
		at = min(ranges[0][0]-leadBytes, len(text))
		head, _ := page.Shorten(text, at)
		at = len(head)
		pieces = append(pieces, page.Piece{Text: "…"})
	}
	text, cut := page.Shorten(text, at+shownBytes)
	for _, r := range ranges {
		from, to := min(max(r[0], at), len(text)), min(r[1], len(text))
		if from >= to {
			continue
		}
		pieces = page.AppendPieces(pieces, text[at:from], false)
		pieces = page.AppendPieces(pieces, text[from:to], true)
		at = to
	}
	pieces = page.AppendPieces(pieces, text[at:], false)
	if cut {
		pieces = append(pieces, page.Piece{Text: "…"})
	}
	return pieces
}

// markedPath splits a path at its matches, separately for directory and name.
func markedPath(path string, ranges [][2]int) (dir, base []page.Piece) {
	slash := strings.LastIndexByte(path, '/') + 1
	part := func(from, to int) (pieces []page.Piece) {
		for _, r := range ranges {
			if begin, end := max(r[0], from), min(r[1], to); begin < end {
				pieces = page.AppendPieces(pieces, path[from:begin], false)
				pieces = page.AppendPieces(pieces, path[begin:end], true)
				from = end
			}
		}
		return page.AppendPieces(pieces, path[from:to], false)
	}
	return part(0, slash), part(slash, len(path))
}

// end adds the summary of the search.
func (f *found) end(s search.Summary) {
	f.Results, f.Matches, f.Searched = s.Results, s.Matches, s.Searched
	f.Elapsed = elapsed(s.Elapsed)
	f.Nothing = len(f.Repos) == 0 && len(f.Names) == 0
	unindexed := map[string]bool{}
	for _, name := range s.Unindexed {
		unindexed[name] = true
	}
	for _, r := range s.Repositories {
		fresh := newFreshness(r, unindexed[r.Repository])
		f.freshByName[r.Repository] = fresh
		f.Fresh = append(f.Fresh, fresh)
		if repo := f.byName[r.Repository]; repo != nil {
			repo.Fresh, fresh.Anchor = fresh, repo.Anchor
		}
	}
	for _, r := range f.Repos {
		for i := range r.Files { // the repository's own branch is not repeated
			file := &r.Files[i]
			if len(file.branches) > 0 && (r.Fresh == nil || len(file.branches) > 1 || file.branches[0] != r.Fresh.Branch) {
				file.About = strings.TrimSuffix(strings.Join(file.branches, ", ")+" · "+file.About, " · ")
			}
		}
	}
	for i := range f.Names {
		f.Names[i].Fresh = f.freshByName[f.Names[i].repository]
	}
	if s.TimedOut {
		f.Notes = append(f.Notes, "The search reached its time limit: there may be more results. Use a narrower "+
			"query, or sign in and use timeout:20s.")
	}
	for _, n := range s.Notices {
		if n.Reason == "files" { // most searches have it, and it matters for all results, and for none
			if !s.Limited {
				f.Remark = n.Message
			}
			continue
		}
		f.Notes = append(f.Notes, n.Message)
	}
	if n := len(s.Unindexed); n > 0 {
		f.Notes = append(f.Notes, "Searched without an index (there is none yet): "+names(s.Unindexed)+".")
	}
	if n := len(s.Missing); n > 0 {
		f.Notes = append(f.Notes, "Not searched (too large, or without an index yet): "+names(s.Missing)+".")
	}
}

// names returns the first of some repositories and the number of the others.
func names(all []string) string {
	const most = 5
	some := make([]string, 0, most)
	for _, name := range all[:min(len(all), most)] {
		some = append(some, schema.Name(name))
	}
	if len(all) <= most {
		return strings.Join(some, ", ")
	}
	return strings.Join(some, ", ") + " and " + strconv.Itoa(len(all)-most) + " more"
}

func newFreshness(r search.Freshness, unindexed bool) *freshness {
	f := &freshness{Repository: schema.Name(r.Repository), Branch: r.Branch, Short: page.Short(r.Indexed)}
	switch {
	case r.Indexed == "" || unindexed:
		f.Class, f.Label, f.Short = "none", "not indexed", page.Short(r.Current)
		f.Says = "searched at " + f.Short + " without an index"
	case r.Lag == 0 && r.Indexed == r.Current:
		f.Label, f.Says = "current", r.Branch+" at "+f.Short
	case r.Lag <= 0:
		f.Class, f.Label = "late", "behind"
		f.Says = "indexed " + f.Short + ", " + r.Branch + " is at " + page.Short(r.Current)
	default:
		f.Class, f.Label = "late", strconv.Itoa(r.Lag)+" behind"
		f.Says = "indexed " + f.Short + ", " + r.Branch + " is at " + page.Short(r.Current)
	}
	if r.Error != "" {
		f.Says += ": " + r.Error
	}
	return f
}
