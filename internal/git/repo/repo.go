// Package repo opens a repository for serving: its objects, refs, history and configuration in one handle.
//
// All requests for a repository share one Repo. Each request first calls Fresh, which compares it with the disk: other
// programs push, repack, delete and create repositories at any time, and the next request must see that.
package repo

import (
	"context"
	"path/filepath"
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/graph"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/git/refs"
)

// Options configure how repositories are opened.
type Options struct {
	Root         string   // all parts of a repository must be below it; "": no limit
	Hidden       []string // directories below the root without repositories; the paths have no symbolic links
	Policy       *Policy  // defaults for keys that a repository's config does not set; nil: DefaultPolicy
	Tables       *Tables  // lists refs in reftables; nil: repositories with reftables are refused
	Place        Place    // of a repository that is a copy; nil: the files at the path are the repository
	RefsMetrics  *refs.Metrics
	GraphMetrics *graph.Metrics
}

// Repo is one open repository. It is safe for concurrent use.
type Repo struct {
	Dir         string // the git directory, without symbolic links if a ".git" file named it
	Common      string // the directory that a linked worktree shares with others; otherwise Dir
	Format      git.ObjectFormat
	Incarnation string // changes when the repository is deleted and created again under the same path
	Objects     *pack.Store
	Refs        *refs.Store
	Graph       *graph.Graph
	options     Options
	layout      *layout
	config      configFile
	settings    Config
	worktree    *configFile // config.worktree; nil: not used
	hidden      hideRules
	tables      bool // the refs are in reftables
	policy      *Policy
	shallow     shallowFile
	objects     string // identity of the object directory
}

// Place is where a repository is kept if its files here are only a copy, whose packs may be missing. Only the owner of
// the Place changes these files, except for its refs.Source and packs: they are not checked for changes.
type Place interface {
	refs.Source
	// ID identifies the repository: it is the incarnation, on every node.
	ID() string
	// Use waits until all packs of the latest known state are here, and keeps them until done is called. progress may be
	// nil. It is called from any goroutine, now and then, with the bytes that are here. The error is Unavailable with a
	// retry hint if that takes too long; the copying continues.
	Use(ctx context.Context, progress func(done, total int64)) (done func(), err error)
}

// Open opens the repository at path: a git directory, or a ".git" file that names one. The error is NotFound if there
// is none, and Denied if the options do not allow the place of one of its parts. It is Corrupt if its files are
// invalid, and Unavailable if they cannot be read or are not supported.
func Open(path string, o Options) (*Repo, error) {
	if o.Root != "" {
		root, err := filepath.EvalSymlinks(o.Root)
		if err != nil {
			return nil, fault.Wrap(fault.Unavailable, "cannot open the root", err)
		}
		o.Root = root
	}
	l, err := locate(path, o)
	if err != nil {
		return nil, err
	}
	r := &Repo{Dir: l.gitDir, Common: l.commonDir, options: o, layout: l}
	if o.Place != nil {
		r.Incarnation = o.Place.ID()
	} else if r.Incarnation, err = l.identity(); err != nil {
		return nil, fault.Wrap(fault.Unavailable, "cannot open the repository", err)
	}
	if err := r.configure(); err != nil {
		return nil, err
	}
	if r.tables && o.Tables == nil {
		return nil, fault.New(fault.Unavailable,
			"this repository's refs are stored as reftables, which this node does not read")
	}
	objects := filepath.Join(r.Common, "objects")
	if r.objects, err = identity(objects); err != nil {
		return nil, fault.Wrap(fault.Unavailable, "cannot open the repository's objects", err)
	}
	if r.Objects, err = pack.Open(objects, pack.Options{Format: r.Format, Root: o.Root,
		Purged: r.purged()}); err != nil {
		return nil, err
	}
	r.Graph = graph.New(r.Objects, r.Objects.Dirs, graph.Options{Format: r.Format, Inside: o.allowsGraph,
		Metrics: o.GraphMetrics})
	visible := refs.Options{Format: r.Format, Metrics: o.RefsMetrics, Inside: o.Allows}
	if r.HidesRefs() {
		visible.Hidden = r.hidden.hides
	}
	if o.Place != nil {
		visible.Source = o.Place
	}
	if r.tables {
		visible.List = o.Tables.lister(r.Dir, r.Format)
	}
	r.Refs = refs.Open(r.Dir, r.Common, visible)
	return r, nil
}

// configure reads the repository's configuration.
func (r *Repo) configure() error {
	config, err := r.config.read(filepath.Join(r.Common, "config"), r.options)
	if err != nil {
		return err
	}
	if r.Format, r.tables, err = checkFormat(config); err != nil {
		return err
	}
	if err := r.worktreeConfig(&config); err != nil {
		return err
	}
	r.settings = config
	if err := checkServed(config); err != nil {
		return err
	}
	if r.hidden, err = hiddenRefs(config, hideFetch); err != nil {
		return err
	}
	defaults := DefaultPolicy()
	if policy := r.options.Policy; policy != nil {
		defaults = *policy
	}
	r.policy, err = newPolicy(config, defaults)
	return err
}

// checkFormat checks the repository format as git does (gitrepository-layout(5), "repositoryformatversion"). A
// repository with an unknown extension is refused, because the extension may change anything. Version 0 has only the
// extensions that are older than version 1, and a configuration without a version has none. tables reports whether the
// refs are in reftables.
func checkFormat(c Config) (format git.ObjectFormat, tables bool, err error) {
	version, ok := c.Get("core.repositoryformatversion")
	if !ok {
		return git.SHA1, false, nil
	}
	switch version {
	case "0", "1":
	default:
		return 0, false, fault.New(fault.Unavailable, "repository format version %.20q is not supported", version)
	}
	format = git.SHA1
	for key := range c.last {
		name, ok := strings.CutPrefix(key, "extensions.")
		if !ok {
			continue
		}
		value, _ := c.Get(key)
		if version == "0" && (name == "objectformat" || name == "noop-v1" || name == "refstorage" && value != "files") {
			return 0, false, fault.New(fault.Unavailable, "repository extension %s needs repository format version 1",
				name)
		}
		switch name {
		case "objectformat":
			f, err := git.ParseObjectFormat(value)
			if err != nil {
				return 0, false, fault.New(fault.Unavailable, "object format %.20q is not supported", value)
			}
			format = f
		case "noop", "noop-v1", "partialclone", "preciousobjects", "worktreeconfig", "relativeworktrees",
			"submodulepathconfig": // they do not change how objects and refs are stored
		case "refstorage":
			if tables = value == "reftable"; !tables && value != "files" {
				return 0, false, fault.New(fault.Unavailable,
					"this repository's refs are stored as %.20q, which is not supported", value)
			}
		case "compatobjectformat":
		default:
			if version == "1" {
				return 0, false, fault.New(fault.Unavailable, "repository extension %.40q is not supported", name)
			}
		}
	}
	return format, tables, nil
}

// worktreeFile is a second config, which git reads after the first one if extensions.worktreeConfig is set.
const worktreeFile = "config.worktree"

// worktreeConfig adds the second config to c, if there is one.
func (r *Repo) worktreeConfig(c *Config) error {
	used, err := c.Bool("extensions.worktreeconfig", false)
	if err != nil || !used {
		return err
	}
	r.worktree = new(configFile)
	more, err := r.worktree.read(filepath.Join(r.Dir, worktreeFile), r.options)
	for _, v := range more.variables {
		c.add(v)
	}
	return err
}

// checkServed returns an error if the config forbids serving the repository, or includes a file that might do so.
func checkServed(c Config) error {
	for key := range c.last {
		if key == "include.path" || strings.HasPrefix(key, "includeif.") && strings.HasSuffix(key, ".path") {
			return fault.New(fault.Unavailable,
				"the repository's config includes another file, which is not followed: it might hide refs")
		}
	}
	serve, err := c.Bool("http.uploadpack", true)
	if err == nil && !serve {
		return fault.New(fault.Denied, "fetching from this repository is turned off (http.uploadpack)")
	}
	return err
}

// HidesRefs reports whether the repository's config may hide refs. Snapshots do not contain hidden refs.
func (r *Repo) HidesRefs() bool { return r.hidden.any() }

// Config returns the repository's own configuration.
func (r *Repo) Config() Config { return r.settings }

// Policy returns what clients may request. It does not change: a change of the config requires another Repo.
func (r *Repo) Policy() *Policy { return r.policy }

// Fresh reports whether the Repo still represents the repository at path, which may contain symbolic links and a ".git"
// file. The directories, the object directory and the configuration must be the same. It makes four stat calls, some
// more for worktrees and submodules, and reads files that are very young.
func (r *Repo) Fresh(path string) bool {
	if !r.layout.isCurrent(path, r.Incarnation) {
		return false
	}
	objects, err := identity(filepath.Join(r.Common, "objects"))
	if err != nil || objects != r.objects || !r.config.isUnchanged() {
		return false
	}
	return r.worktree == nil || r.worktree.isUnchanged()
}

// IsThere reports whether the directory of objects has not been moved or replaced.
func (r *Repo) IsThere() bool {
	objects, err := identity(filepath.Join(r.Common, "objects"))
	return err == nil && objects == r.objects
}

// IsConfigured reports whether the configuration has the content with which the Repo was opened. Fresh is stricter.
func (r *Repo) IsConfigured() bool { return r.config.isUnchanged() || r.config.hasKnownContent() }

// Refresh updates the view of objects and history. Snapshots check refs themselves. A commit-graph that cannot be used
// is not an error: history is then read from the objects, and the graph's metrics count it.
func (r *Repo) Refresh() error {
	if err := r.Objects.Refresh(); err != nil {
		return err
	}
	_ = r.Graph.Refresh()
	return nil
}

// IsCopy reports whether the repository has a Place: its objects may be missing outside of Use.
func (r *Repo) IsCopy() bool { return r.options.Place != nil }

// Use waits until the objects of the latest known refs can be read, and keeps them readable until done is called. Take
// the snapshot of the refs first. See Place.Use; without a Place it does nothing.
func (r *Repo) Use(ctx context.Context, progress func(done, total int64)) (done func(), err error) {
	if !r.IsCopy() {
		return func() {}, nil
	}
	if done, err = r.options.Place.Use(ctx, progress); err != nil {
		return nil, err
	}
	if err := r.Refresh(); err != nil {
		done()
		return nil, err
	}
	return done, nil
}

// Network returns the object directory that the repository shares with its forks, or "" without forks.
func (r *Repo) Network() string {
	for _, dir := range r.Objects.Dirs()[1:] {
		if IsNetwork(dir) {
			return dir
		}
	}
	return ""
}

// PackScope identifies the repositories that share packs in the cache with this one: its network of forks, or itself.
// In a store, the name of a network is the ID of the repository that was forked.
func (r *Repo) PackScope() string {
	if network := r.Network(); network != "" {
		return filepath.Base(filepath.Dir(network))
	}
	return r.Incarnation
}

// Hold is Use without progress.
func (r *Repo) Hold(ctx context.Context) (release func(), err error) { return r.Use(ctx, nil) }

// Close closes the open files. Requests that still use the handle may fail with an error, but do not crash.
func (r *Repo) Close() error { return r.Objects.Close() }
