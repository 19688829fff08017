package schema

import (
	"bytes"
	"encoding/json"
	"net/url"
	"strconv"
	"strings"
)

// maxResult is the approximate maximum size of a result in bytes, without File.Whole. An event stays far below the 10
// MiB that clients read.
const maxResult = 1 << 20

// Append appends a result to dst: an element of a JSON array, without a comma.
func (f Format) Append(dst []byte, r *File) []byte {
	b := bytes.NewBuffer(dst)
	e := json.NewEncoder(b)
	e.SetEscapeHTML(false)
	if err := e.Encode(f.result(r)); err != nil {
		panic(err) // no type below can fail
	}
	return bytes.TrimSuffix(b.Bytes(), []byte{'\n'})
}

func (f Format) result(r *File) any {
	switch {
	case f == GraphQL && r.Kind == Repository:
		return graphQLRepository{TypeName: "Repository", Name: Name(r.Repository), URL: RepositoryURL(r.Repository)}
	case r.Kind == Repository:
		return repositoryResult{Type: "repo", Repository: Name(r.Repository)}
	case f == GraphQL:
		return newGraphQLFile(r)
	case f == StreamLines, f == StreamChunks:
		return newStreamFile(r, f == StreamChunks)
	}
	return newAPIFile(r)
}

func typeOf(k Kind) string { return [...]string{"content", "path", "symbol", "repo"}[k] }

type repositoryResult struct {
	Type       string `json:"type"`
	Repository string `json:"repository"`
}

// apiFile is a file in our own format.
type apiFile struct {
	Type       string    `json:"type"`
	Repository string    `json:"repository"`
	Path       string    `json:"path"`
	Commit     string    `json:"commit"`
	Branches   []string  `json:"branches"`
	Language   string    `json:"language,omitempty"`
	URL        string    `json:"url"`
	Unindexed  bool      `json:"unindexed,omitempty"`
	PathRanges [][2]int  `json:"path_ranges,omitempty"`
	Lines      []apiLine `json:"lines"`
}

// apiLine is a line with matches. Ranges are start and end in code points.
type apiLine struct {
	Line   int      `json:"line"`
	Text   string   `json:"text"`
	Ranges [][2]int `json:"ranges"`
	Symbol string   `json:"symbol,omitempty"`
}

func newAPIFile(r *File) apiFile {
	f := apiFile{
		Type: typeOf(r.Kind), Repository: Name(r.Repository), Path: r.Path, Commit: r.Commit,
		Branches: nonNil(r.Branches),
		Language: r.Language, URL: fileURL(r), Unindexed: r.Unindexed, Lines: []apiLine{},
	}
	for _, p := range r.PathRanges {
		f.PathRanges = append(f.PathRanges, [2]int{p.Start.Column, p.End.Column})
	}
	r.eachLine(func(l *lines) {
		line := apiLine{Line: l.number + 1, Text: string(l.text), Ranges: l.spans(true)}
		if s := l.ranges[0].Symbol; s != nil {
			line.Symbol = s.Kind
		}
		f.Lines = append(f.Lines, line)
	})
	return f
}

// streamFile is a file in the format of Sourcegraph's stream.
type streamFile struct {
	Type         string       `json:"type"`
	Path         string       `json:"path"`
	Repository   string       `json:"repository"`
	Branches     []string     `json:"branches"`
	Commit       string       `json:"commit"`
	Symbols      []symbol     `json:"symbols,omitzero"`
	PathMatches  []matchRange `json:"pathMatches,omitzero"`
	ChunkMatches []chunkMatch `json:"chunkMatches,omitzero"`
	LineMatches  []lineMatch  `json:"lineMatches,omitzero"`
}

type chunkMatch struct {
	Content      string       `json:"content"`
	ContentStart position     `json:"contentStart"`
	Ranges       []matchRange `json:"ranges"`
}

type matchRange struct {
	Start position `json:"start"`
	End   position `json:"end"`
}

type position struct {
	Offset int `json:"offset"`
	Line   int `json:"line"`
	Column int `json:"column"`
}

// lineMatch is a line with matches. OffsetAndLengths are start and length in code points.
type lineMatch struct {
	Line             string   `json:"line"`
	LineNumber       int      `json:"lineNumber"`
	OffsetAndLengths [][2]int `json:"offsetAndLengths"`
}

// symbol is a symbol in Sourcegraph's formats.
type symbol struct {
	URL           string `json:"url"`
	Name          string `json:"name"`
	ContainerName string `json:"containerName"`
	Kind          string `json:"kind"`
	Line          int    `json:"line"`
}

func newStreamFile(r *File, chunks bool) streamFile {
	f := streamFile{Type: typeOf(r.Kind), Path: r.Path, Repository: Name(r.Repository), Branches: nonNil(r.Branches),
		Commit: r.Commit}
	switch {
	case r.Kind == Symbol:
		f.Symbols = symbols(r)
	case r.Kind == Path:
		if len(r.PathRanges) > 0 {
			f.PathMatches = matchRanges(r.PathRanges)
		}
	case chunks:
		f.ChunkMatches = chunkMatches(r)
	default:
		f.LineMatches = []lineMatch{}
		r.eachLine(func(l *lines) {
			f.LineMatches = append(f.LineMatches, lineMatch{string(l.text), l.number, l.spans(false)})
		})
	}
	return f
}

// graphQLRepository is a repository in the format of Sourcegraph's GraphQL API.
type graphQLRepository struct {
	TypeName string `json:"__typename,omitempty"`
	Name     string `json:"name"`
	URL      string `json:"url"`
}

// graphQLFile is a file in the format of Sourcegraph's GraphQL API.
type graphQLFile struct {
	TypeName    string             `json:"__typename"`
	Repository  graphQLRepository  `json:"repository"`
	File        graphQLBlob        `json:"file"`
	LineMatches []graphQLLineMatch `json:"lineMatches"`
	Symbols     []symbol           `json:"symbols"`
}

type graphQLBlob struct {
	Name    string        `json:"name"`
	Path    string        `json:"path"`
	URL     string        `json:"url"`
	Content string        `json:"content"`
	Commit  graphQLCommit `json:"commit"`
}

type graphQLCommit struct {
	OID string `json:"oid"`
}

type graphQLLineMatch struct {
	Preview          string   `json:"preview"`
	LineNumber       int      `json:"lineNumber"`
	OffsetAndLengths [][2]int `json:"offsetAndLengths"`
	LimitHit         bool     `json:"limitHit"`
}

func newGraphQLFile(r *File) graphQLFile {
	f := graphQLFile{
		TypeName:   "FileMatch",
		Repository: graphQLRepository{Name: Name(r.Repository), URL: RepositoryURL(r.Repository)},
		File: graphQLBlob{
			Name: r.Path[strings.LastIndexByte(r.Path, '/')+1:], Path: r.Path, URL: fileURL(r),
			Content: string(r.Whole),
			Commit:  graphQLCommit{r.Commit},
		},
		LineMatches: []graphQLLineMatch{}, Symbols: []symbol{},
	}
	r.eachLine(func(l *lines) {
		f.LineMatches = append(f.LineMatches, graphQLLineMatch{Preview: string(l.text), LineNumber: l.number,
			OffsetAndLengths: l.spans(false)})
	})
	if r.Kind == Symbol {
		f.Symbols = symbols(r)
	}
	return f
}

// eachLine calls fn for the lines with matches, up to maxResult. A result of kind Path has none.
func (r *File) eachLine(fn func(*lines)) {
	if r.Kind == Path {
		return
	}
	size := 0
	for i := range r.Chunks {
		for l := linesOf(r.Chunks[i].bounded()); l.next(); {
			if size > maxResult {
				return
			}
			size += len(l.text) + 60 + 12*len(l.ranges) // about
			fn(&l)
		}
	}
}

func chunkMatches(r *File) []chunkMatch {
	list, size := []chunkMatch{}, 0
	for i := range r.Chunks {
		if size > maxResult {
			break
		}
		c := r.Chunks[i].bounded()
		size += len(c.Content) + 80 + 90*len(c.Ranges) // about
		list = append(list, chunkMatch{string(c.Content), position(c.Start), matchRanges(c.Ranges)})
	}
	return list
}

func matchRanges(ranges []Range) []matchRange {
	list := make([]matchRange, len(ranges))
	for i, r := range ranges {
		list[i] = matchRange{position(r.Start), position(r.End)}
	}
	return list
}

func symbols(r *File) []symbol {
	list, size := []symbol{}, 0
	for i := range r.Chunks {
		for _, at := range r.Chunks[i].Ranges {
			if at.Symbol == nil || size > maxResult {
				continue
			}
			line := at.Start.Line + 1
			s := symbol{
				URL:  fileURL(r) + "#L" + strconv.Itoa(line),
				Name: at.Symbol.Name, ContainerName: at.Symbol.Container, Kind: at.Symbol.Kind, Line: line,
			}
			size += len(s.URL) + len(s.Name) + len(s.ContainerName) + 80
			list = append(list, s)
		}
	}
	return list
}

// nonNil makes a nil list an empty array in JSON.
func nonNil(list []string) []string {
	if list == nil {
		return []string{}
	}
	return list
}

// fileURL returns the path of the page that shows the file at the commit that was searched.
func fileURL(r *File) string {
	return escape("/" + r.Repository + "/-/file/" + r.Commit + "/" + r.Path)
}

// RepositoryURL returns the path of the repository in results.
func RepositoryURL(name string) string { return escape("/" + name) }

// escape escapes a path for a URL.
func escape(path string) string { return (&url.URL{Path: path}).EscapedPath() }
