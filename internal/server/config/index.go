package config

import (
	"github.com/packhorse-git/packhorse/internal/git"
)

// IndexConfig sets the search index and the processes that build and search it (docs/reference/search-api.md).
type IndexConfig struct {
	// Dir is the directory of the index. Empty means STATE/search. A lost index is rebuilt.
	Dir string `toml:"dir" path:"yes"`

	// Branches lists full names of refs that are indexed in addition to HEAD, as in "refs/heads/release". A change in a
	// repository with one of them rebuilds the index of that repository.
	Branches []string `toml:"branches"`

	// MaxFile is the maximum size of an indexed file. Of larger files only the path is found.
	MaxFile Size `toml:"max_file" default:"1MiB" range:"1KiB..32MiB"`

	// MaxRepositoryFiles is the maximum number of files of an indexed repository. Larger ones are not searched: searches
	// and "packhorse search status" name them.
	MaxRepositoryFiles int `toml:"max_repository_files" default:"1000000" range:"1.."`

	// MaxRepositoryBytes is the maximum size of the files of an indexed repository, without those larger than max_file.
	// Larger repositories are not searched.
	MaxRepositoryBytes Size `toml:"max_repository_bytes" default:"4GiB" range:"1MiB.."`

	// Memory is the maximum memory of an index process. At most two run. The search process may use twice as much. The
	// index itself does not count: it is memory-mapped.
	Memory Size `toml:"memory" default:"1GiB" range:"256MiB.."`

	// Ctags is the program that finds symbols: the name or path of universal-ctags. Empty, or a missing program, means
	// that there are no symbols.
	Ctags string `toml:"ctags" default:"universal-ctags"`
}

func (c *IndexConfig) check(bad func(format string, args ...any)) {
	if len(c.Branches) > 32 {
		bad("index.branches has %d names; it may have 32", len(c.Branches))
	}
	for _, name := range c.Branches {
		if ref, err := git.ParseRefName(name); err != nil || ref == git.HEAD {
			bad("index.branches: %q is not the full name of a branch, as in \"refs/heads/main\"", name)
		}
	}
}

// ShardSize returns the maximum content of a file of the index, in bytes. Building it takes several times the memory.
func (c *IndexConfig) ShardSize() int64 { return max(16<<20, int64(c.Memory)/16) }
