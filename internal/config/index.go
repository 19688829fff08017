package config

import (
	"time"

	"github.com/packhorse-git/packhorse/internal/git"
)

// IndexConfig is the index that searches use, and the processes that make and search it. Docs/search.md tells how it works.
type IndexConfig struct {
	// Where the index is. Empty means STATE/search. It is made anew where it is lost.
	Dir string `toml:"dir"`

	// Full names of refs that are indexed beside HEAD, as "refs/heads/release", in the repositories that have them. In repositories that have one of them a
	// change is indexed by making the index anew.
	Branches []string `toml:"branches"`

	// Of greater files only the path is found.
	MaxFile Size `toml:"max_file"`

	// The most memory that a process which indexes may have; there are two at most. The one that searches may have twice as much. The index is not in
	// it: it is mapped, and the kernel keeps what is used of it.
	Memory Size `toml:"memory"`

	// How much nicer than the server the processes that index are, from 0 to 19.
	Nice int `toml:"nice"`

	// Finds symbols: universal-ctags by its name or path. Where there is none, there are no symbols. Empty: do not look for it.
	Ctags string `toml:"ctags"`

	// The most results of a search, whatever it asks for.
	Results int `toml:"results"`

	// The most time that a search may take, whatever it asks for.
	Timeout Duration `toml:"timeout"`
}

func defaultIndex() IndexConfig {
	return IndexConfig{
		Branches: []string{}, MaxFile: 1 << 20, Memory: 1 << 30, Nice: 15, Ctags: "universal-ctags", Results: 100_000, Timeout: Duration{time.Minute},
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

// ShardSize is how many bytes of content a file of the index has at most: what is put together in memory takes several times that.
func (c *IndexConfig) ShardSize() int64 { return max(16<<20, int64(c.Memory)/16) }
