package worker

import (
	"cmp"
	"slices"

	"github.com/sourcegraph/zoekt"

	"github.com/packhorse-git/packhorse/internal/search/schema"
)

// convert converts a match into f, whose memory it reuses. f refers to the memory of the match.
func convert(f *schema.File, m *zoekt.FileMatch, p plan) {
	*f = schema.File{
		Kind: schema.Content, Repository: m.Repository, Path: m.FileName, Commit: m.Version, Branches: m.Branches,
		Language: m.Language, Whole: m.Content,
		Chunks: f.Chunks[:0], PathRanges: f.PathRanges[:0],
	}
	if p.repository {
		f.Kind = schema.Repository
		return
	}
	if p.file {
		f.Kind = schema.Path
		return
	}
	slices.SortFunc(m.ChunkMatches, func(a, b zoekt.ChunkMatch) int {
		return cmp.Compare(a.ContentStart.ByteOffset, b.ContentStart.ByteOffset)
	})
	symbols := false
	for i := range m.ChunkMatches {
		c := &m.ChunkMatches[i]
		if c.FileName {
			f.PathRanges = appendRanges(f.PathRanges, c)
			continue
		}
		to := schema.Chunk{Content: c.Content, Start: position(c.ContentStart)}
		if n := len(f.Chunks); n < cap(f.Chunks) {
			to.Ranges = f.Chunks[:n+1][n].Ranges[:0] // of an earlier match
		}
		to.Ranges = appendRanges(to.Ranges, c)
		symbols = symbols || c.SymbolInfo != nil
		f.Chunks = append(f.Chunks, to)
	}
	switch {
	case len(f.Chunks) == 0:
		f.Kind = schema.Path
	case p.symbol && symbols:
		f.Kind = schema.Symbol
	}
}

func appendRanges(list []schema.Range, c *zoekt.ChunkMatch) []schema.Range {
	for i, r := range c.Ranges {
		to := schema.Range{Start: position(r.Start), End: position(r.End)}
		if c.SymbolInfo != nil && c.SymbolInfo[i] != nil {
			s := c.SymbolInfo[i]
			to.Symbol = &schema.Sym{Name: s.Sym, Kind: s.Kind, Container: s.Parent}
		}
		list = append(list, to)
	}
	return list
}

// position converts a location to lines and columns from 0. zoekt counts them from 1, and uses 0 in paths.
func position(l zoekt.Location) schema.Position {
	return schema.Position{Offset: int(l.ByteOffset), Line: int(max(l.LineNumber, 1) - 1), Column: int(max(l.Column,
		1) - 1)}
}
