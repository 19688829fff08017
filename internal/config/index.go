package config

import (
	"time"

	"github.com/packhorse-git/packhorse/internal/git"
)

// IndexConfig sets the search index and the processes that build and search it (docs/reference/search.md).
type IndexConfig struct {
	// Dir is the directory of the index. Empty means STATE/search. A lost index is rebuilt.
	Dir string `toml:"dir"`

	// Branches lists full names of refs that are indexed in addition to HEAD, as in "refs/heads/release". A change in a
	// repository with one of them rebuilds the index of that repository.
	Branches []string `toml:"branches"`

	// MaxFile is the maximum size of an indexed file. Of larger files only the path is found.
	MaxFile Size `toml:"max_file"`

	// Memory is the maximum memory of an index process. At most two run. The search process may use twice as much. The
	// index itself does not count: it is memory-mapped.
	Memory Size `toml:"memory"`

	// Nice is the niceness of the index processes relative to the server, from 0 to 19.
	Nice int `toml:"nice"`

	// Ctags is the program that finds symbols: the name or path of universal-ctags. Empty, or a missing program, means
	// that there are no symbols.
	Ctags string `toml:"ctags"`

	// Results is the maximum number of results of a search.
	Results int `toml:"results"`

	// Timeout is the maximum duration of a search.
	Timeout Duration `toml:"timeout"`
}

func defaultIndex() IndexConfig {
	return IndexConfig{
		Branches: []string{}, MaxFile: 1 << 20, Memory: 1 << 30, Nice: 15, Ctags: "universal-ctags", Results: 100_000,
		Timeout: Duration{time.Minute},
	}
}

func (c *IndexConfig) checkNumbers(b bounds) {
	b.size("index.max_file", c.MaxFile, 1<<10)
	b.size("index.memory", c.Memory, 256<<20)
	b.number("index.nice", c.Nice, 0, 19)
	b.number("index.results", c.Results, 1, 10_000_000)
	b.time("index.timeout", c.Timeout)
	if c.MaxFile > 32<<20 {
		b.bad("index.max_file is %s; it has to be 32MiB at most", c.MaxFile)
	}
	if len(c.Branches) > 32 {
		b.bad("index.branches has %d names; it may have 32", len(c.Branches))
	}
	for _, name := range c.Branches {
		if ref, err := git.ParseRefName(name); err != nil || ref == git.HEAD {
			b.bad("index.branches: %q is no full name of a branch, as \"refs/heads/main\"", name)
		}
	}
}

// ShardSize is how many bytes of content a file of the index has at most: what is put together in memory takes several
// times that.
func (c *IndexConfig) ShardSize() int64 { return max(16<<20, int64(c.Memory)/16) }
