package storage

import (
	"context"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/git/refs"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/node/places"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
)

// Description describes a repository.
type Description struct {
	Path    string // below the root, as it is on disk
	Format  git.ObjectFormat
	Head    refs.Head
	Version git.Version
	Size    int64 // bytes of its files; -1: too many to count
	Refs    int64 // number of visible refs, not counting HEAD
	Objects pack.Counts
	Hooks   []string          // names of its own hooks that Git would run on a push (repo.Hook)
	Config  map[string]string // its own settings for serving; several values of a key are lines

	Settings places.Settings
	PushedAt time.Time // zero: not known
	// CommittedAt is the latest date of HEAD and the first branches in Summarize; zero: not known, or PushedAt is.
	CommittedAt time.Time
	Expires     time.Time // zero: never

	RepositoryHooks receivepack.RepositoryHooks // policy for Hooks; "": pushes are not accepted
}

// Describe describes a repository. It reads the size of each file, each ref, and the names of packs and loose objects.
// Concurrent changes may or may not be counted. The errors are those of opening a repository, and of ctx.
func (n *Node) Describe(ctx context.Context, path git.RepoPath) (Description, error) {
	h, snap, version, err := n.snapshot(ctx, path)
	if err != nil {
		return Description{}, err
	}
	defer n.release(h)
	d := Description{Path: h.found.Path().String(), Format: h.Format, Head: snap.Head(), Version: version,
		Config: servedConfig(h.Config()), RepositoryHooks: n.hooks, Settings: places.ReadSettings(h.Common, h.Config()),
		PushedAt: h.place.PushedAt(), Expires: h.place.Expires()}
	if hooks, err := h.Hooks(); err != nil {
		d.Hooks = []string{fault.Message(err)}
	} else {
		for _, hook := range hooks {
			d.Hooks = append(d.Hooks, hook.Name)
		}
	}
	if d.Refs, err = countRefs(ctx, snap); err != nil {
		return Description{}, err
	}
	if d.Objects, err = h.place.Counts(ctx); err != nil {
		return Description{}, err
	}
	if d.Size, err = h.place.Size(ctx); err != nil {
		return Description{}, err
	}
	return d, nil
}

// countRefs counts the visible refs.
func countRefs(ctx context.Context, snap *refs.Snapshot) (count int64, err error) {
	err = snap.Each("", func(refs.Ref) error {
		if count++; count%MaxBatch == 0 {
			return ctx.Err()
		}
		return nil
	})
	return count, err
}

// servedConfig selects the settings that may be shown. Addresses of remotes and possible secrets, such as
// http.extraHeader and receive.certNonceSeed, are not among them.
func servedConfig(c repo.Config) map[string]string {
	shown := make(map[string]string)
	for key, value := range c.All() {
		section, _, _ := strings.Cut(key, ".")
		switch section {
		case "extensions", "uploadpack", "uploadpackfilter", "lsrefs", "transfer", "receive":
		default:
			if key != "core.repositoryformatversion" && key != "http.uploadpack" && key != "http.receivepack" &&
				key != "lfs.quota" && key != "lfs.grace" {
				continue
			}
		}
		if key == "receive.certnonceseed" {
			continue
		}
		if before, ok := shown[key]; ok {
			value = before + "\n" + value
		}
		shown[key] = value
	}
	return shown
}
