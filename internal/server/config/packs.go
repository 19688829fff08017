package config

// PacksConfig sets what makes packs.
type PacksConfig struct {
	// Source makes the packs that are not in the cache: "native" (the server itself), "git" (git pack-objects), or
	// "auto". With "auto" the server makes them, except for those that cost Git less, and those of repositories that
	// only Git can read (docs/explanation/packs.md). With "native" the fetches of such packs fail.
	Source string `toml:"source" default:"auto" values:"auto native git"`
}

// Values of packs.source.
const (
	PacksByServer = "native"
	PacksByGit    = "git"
)
