package web_test

import (
	"strings"

	"github.com/packhorse-git/packhorse/internal/search/schema"
)

// result returns a result in the format of the API and its number of matches.
func result(repository, name, text, word string, fold bool) (element []byte, n int) {
	f := schema.File{Repository: repository, Path: name, Commit: commitA, Branches: []string{"main"}}
	if strings.HasSuffix(name, ".go") {
		f.Language = "Go"
	}
	number, offset := 0, 0
	for line := range strings.Lines(text) {
		in := line
		if fold {
			in = lower(line)
		}
		chunk := schema.Chunk{Content: []byte(line), Start: schema.Position{Offset: offset, Line: number}}
		position := func(at int) schema.Position {
			return schema.Position{Offset: offset + at, Line: number, Column: len([]rune(line[:at]))}
		}
		for at := 0; word != ""; {
			i := strings.Index(in[at:], word)
			if i < 0 {
				break
			}
			chunk.Ranges = append(chunk.Ranges, schema.Range{Start: position(at + i), End: position(at + i + len(word))})
			at += i + len(word)
			n++
		}
		if chunk.Ranges != nil {
			f.Chunks = append(f.Chunks, chunk)
		}
		number++
		offset += len(line)
	}
	return schema.API.Append(nil, &f), n
}

// lower converts ASCII letters and keeps the offsets of bytes.
func lower(s string) string {
	b := []byte(s)
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			b[i] = c + 'a' - 'A'
		}
	}
	return string(b)
}
