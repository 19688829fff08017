package schema

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

// some returns results of each kind. Their JSON is in testdata.
func some() []*File {
	const commit = "0123456789abcdef0123456789abcdef01234567"
	return []*File{
		{Kind: Content, Repository: "team/app", Path: "cmd/main.go", Commit: commit, Branches: []string{"HEAD", "main"},
			Language: "Go",
			Whole:    []byte("package main\n\nfunc héllo() {}\nfunc main() { héllo() }\n"),
			Chunks: []Chunk{
				{Content: []byte("func héllo() {}\nfunc main() { héllo() }\n"), Start: Position{14, 2, 0}, Ranges: []Range{
					{Start: Position{19, 2, 5}, End: Position{25, 2, 10}}, {Start: Position{45, 3, 14}, End: Position{51, 3, 19}}}},
			}},
		{Kind: Content, Repository: "a \"b\"/ünï", Path: "x y/<&>#?.txt", Commit: commit, Branches: []string{"main"},
			Unindexed: true,
			Whole:     []byte("one\r\ntwo\tthree\xff\r\n\u2028"),
			Chunks: []Chunk{
				{Content: []byte("one\r\ntwo\tthree\xff\r\n"), Start: Position{0, 0, 0},
					Ranges: []Range{{Start: Position{1, 0, 1}, End: Position{8, 1, 3}}}},
			}},
		{Kind: Path, Repository: "team/app", Path: "cmd/main.go", Commit: commit, Branches: []string{"main"}, Language: "Go",
			Whole:      []byte("x"),
			PathRanges: []Range{{Start: Position{4, 0, 4}, End: Position{8, 0, 8}}}},
		{Kind: Symbol, Repository: "team/app", Path: "cmd/main.go", Commit: commit, Branches: []string{"main"},
			Language: "Go", Whole: []byte("func main() {}"),
			Chunks: []Chunk{{Content: []byte("func main() {}"), Ranges: []Range{
				{Start: Position{5, 0, 5}, End: Position{9, 0, 9}, Symbol: &Sym{Name: "main", Kind: "function",
					Container: "main"}}}}}},
		{Kind: Repository, Repository: "team/app"},
	}
}

// TestGolden compares with what clients are known to read, byte by byte.
func TestGolden(t *testing.T) {
	t.Parallel()
	for format, name := range []string{API: "api", StreamLines: "lines", StreamChunks: "chunks", GraphQL: "graphql"} {
		var got []byte
		for _, r := range some() {
			begin := len(got)
			got = append(Format(format).Append(got, r), '\n')
			if !json.Valid(got[begin:]) {
				t.Errorf("%s: no JSON: %s", name, got[begin:])
			}
		}
		path := filepath.Join("testdata", name+".jsonl")
		if os.Getenv("UPDATE") != "" {
			if err := os.WriteFile(path, got, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %v\n%s\nwant\n%s", name, err, got, want)
		}
	}
}

// TestLinesAreThoseOfChunks: lines and chunks have the same ranges, for any content.
func TestLinesAreThoseOfChunks(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		content := []byte(rapid.StringMatching(`([aé世]{0,5}(\n|\r\n)){1,6}[aé]{0,3}`).Draw(t, "content"))
		place := func(offset int) Position {
			line := bytes.Count(content[:offset], []byte("\n"))
			begin := bytes.LastIndexByte(content[:offset], '\n') + 1
			return Position{offset, line + 7, utf8.RuneCount(content[begin:offset])}
		}
		var starts []int
		for i := range string(content) {
			starts = append(starts, i)
		}
		starts = append(starts, len(content))
		var ranges []Range
		for i := 0; i < len(starts)-1; {
			i += rapid.IntRange(0, 6).Draw(t, "gap")
			end := i + rapid.IntRange(1, 8).Draw(t, "length")
			if end >= len(starts) {
				break
			}
			ranges = append(ranges, Range{Start: place(starts[i]), End: place(starts[end])})
			i = end
		}
		if len(ranges) == 0 {
			return
		}
		r := &File{Chunks: []Chunk{{Content: content, Start: Position{0, 7, 0}, Ranges: ranges}}}
		var got struct {
			LineMatches []struct {
				Line             string
				LineNumber       int
				OffsetAndLengths [][2]int
			}
		}
		if err := json.Unmarshal(StreamLines.Append(nil, r), &got); err != nil {
			t.Fatal(err)
		}
		found := map[int]bool{} // code points by their place in the content, without lines' ends
		count := 0
		for _, l := range got.LineMatches {
			if len(l.OffsetAndLengths) == 0 {
				t.Fatalf("a line without a match: %+v", l)
			}
			for _, s := range l.OffsetAndLengths {
				if s[0] < 0 || s[1] < 0 {
					t.Fatalf("%+v", l)
				}
				for i := s[0]; i < s[0]+s[1]; i++ {
					found[l.LineNumber<<20|i] = true
				}
			}
		}
		for i := range starts[:len(starts)-1] {
			p := place(starts[i])
			if c := content[starts[i]]; c == '\n' || c == '\r' {
				continue
			}
			for _, r := range ranges {
				if r.Start.Offset <= starts[i] && starts[i] < r.End.Offset {
					count++
					if !found[p.Line<<20|p.Column] {
						t.Fatalf("line %d, column %d is missing in %+v of %q %+v", p.Line, p.Column, got, content, ranges)
					}
				}
			}
		}
	})
}

// TestBounds: lines without end, and files with matches without end.
func TestBounds(t *testing.T) {
	t.Parallel()
	long := bytes.Repeat([]byte("é\x00"), 2<<20)
	at := 3 << 20
	r := &File{Chunks: []Chunk{{Content: long, Start: Position{100, 1, 0}, Ranges: []Range{
		{Start: Position{100 + at, 1, at / 3 * 2}, End: Position{103 + at, 1, at/3*2 + 2}}, {Start: Position{100 + at +
			(2 << 20), 1, 1}, End: Position{103 + at + (2 << 20), 1, 3}}}}}}
	many := &File{}
	for i := range 200_000 {
		many.Chunks = append(many.Chunks, Chunk{Content: []byte("a line\n"), Start: Position{i * 7, i, 0},
			Ranges: []Range{{Start: Position{i * 7, i, 0}, End: Position{i*7 + 1, i, 1}}}})
	}
	for f := API; f <= GraphQL; f++ {
		for _, r := range []*File{r, many} {
			got := f.Append(nil, r)
			if !json.Valid(got) || len(got) > 2<<20 {
				t.Errorf("format %d: %d bytes", f, len(got))
			}
		}
	}
	var chunks struct{ ChunkMatches []json.RawMessage }
	var chunk struct {
		Content      string
		ContentStart Position
		Ranges       []Range
	}
	if err := json.Unmarshal(StreamChunks.Append(nil, r), &chunks); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(chunks.ChunkMatches[0], &chunk); err != nil {
		t.Fatal(err)
	}
	if skip := chunk.ContentStart.Offset - 100; len(chunk.Content) > maxChunk ||
		!strings.HasPrefix(string(long[skip:]), chunk.Content) ||
		chunk.ContentStart.Column != utf8.RuneCount(long[:skip]) || len(chunk.Ranges) != 1 ||
		chunk.Ranges[0].Start.Offset-chunk.ContentStart.Offset > maxBefore+4 {
		t.Errorf("%+v, %d bytes, %+v", chunk.ContentStart, len(chunk.Content), chunk.Ranges)
	}
}

// typical is a result as searches have many.
func typical(i int) *File {
	line := []byte(fmt.Sprintf("\treturn fmt.Errorf(\"reading %%s, part %d of what there is: %%w\", name, err) // and "+
		"some more\n", i))
	return &File{Repository: "team/application", Path: fmt.Sprintf("internal/package%d/some_file.go", i%100),
		Commit:   "0123456789abcdef0123456789abcdef01234567",
		Branches: []string{"HEAD"}, Language: "Go", Chunks: []Chunk{{Content: line, Start: Position{1000, 40, 0},
			Ranges: []Range{{Start: Position{1009, 40, 8}, End: Position{1019, 40, 18}}}}}}
}

func BenchmarkAppend(b *testing.B) {
	results := make([]*File, 11_000)
	for i := range results {
		results[i] = typical(i)
	}
	for format, name := range []string{API: "api", StreamLines: "lines", StreamChunks: "chunks"} {
		b.Run(name, func(b *testing.B) {
			var dst []byte
			b.ReportAllocs()
			for b.Loop() {
				dst = dst[:0]
				for _, r := range results {
					dst = append(Format(format).Append(dst, r), ',')
				}
			}
			b.SetBytes(int64(len(dst)))
		})
	}
}

// Results have the name by which a repository is cloned, and links the path where it is: both "a" and "a.git" may be
// there.
func TestNames(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]string{"team/app.git": "team/app", "app": "app", "app/.git": "app/.git",
		".git": ".git", "a.git.git": "a.git"} {
		if got := Name(path); got != want {
			t.Errorf("%s is called %s, want %s", path, got, want)
		}
		for _, format := range []Format{API, StreamLines, StreamChunks, GraphQL, APIEvents} {
			text := string(format.Append(nil, &File{Repository: path, Path: "f", Commit: "1"}))
			name := `"repository":"` + want + `"`
			if format == GraphQL {
				name = `"repository":{"name":"` + want + `"`
			}
			if !strings.Contains(text, name) || strings.Contains(text, "/-/file/") &&
				!strings.Contains(text, "/"+path+"/-/file/") {
				t.Errorf("%d: %s", format, text)
			}
		}
	}
}
