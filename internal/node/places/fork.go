package places

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/disk"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/git/refs"
	"github.com/packhorse-git/packhorse/internal/git/repo"
)

// ForkOptions configure a fork.
type ForkOptions struct {
	// Refs are full names of refs, or beginnings of names that end in a slash. None: all visible refs.
	Refs      []string
	RequestID string // as in Places.Create
	// Lifetime is the time after which the fork is removed. Zero: it is not.
	Lifetime time.Duration
	Settings Settings // of the fork
}

// Selects reports whether the fork gets a ref.
func (o ForkOptions) Selects(name git.RefName) bool {
	return len(o.Refs) == 0 || slices.ContainsFunc(o.Refs, func(want string) bool {
		return string(name) == want || strings.HasSuffix(want, "/") && strings.HasPrefix(string(name), want)
	})
}

// CheckSelected returns an error if the number of selected refs is zero although refs were asked for.
func (o ForkOptions) CheckSelected(count int) error {
	if count > 0 || len(o.Refs) == 0 {
		return nil
	}
	hint := ""
	if !strings.HasPrefix(o.Refs[0], "refs/") {
		hint = "; did you mean refs/heads/" + fault.Short(o.Refs[0]) + "?"
	}
	return fault.InField("refs", fault.New(fault.Invalid, "no ref matches %s%s",
		fault.Short(strings.Join(o.Refs, ", ")), hint))
}

// Fork implements Places. The repositories of a network borrow the objects of one directory by a relative path in
// objects/info/alternates: PRIVATE/networks/ID/objects, where PRIVATE is a private directory. The source joins the
// network with its first fork. Its packs are linked into the network's directory. So the removal of any member harms no
// other, and the members are those whose alternates name the directory.
//
// A fork that finds the objects of its source in the network costs a few small files.
func (d *Directories) Fork(ctx context.Context, source, target git.RepoPath, o ForkOptions) error {
	p, err := d.acquire(source)
	if err != nil {
		return err
	}
	r, err := p.Open(ctx, d.Repo)
	if err != nil {
		return err
	}
	defer r.Close()
	if isPartial(r.Config()) {
		return fault.New(fault.Denied,
			"%s is a partial clone and lacks objects: fork the repository that it was cloned from", source)
	}
	f := fork{Directories: d, source: r, options: o}
	release, err := d.Claims.Gates.Hold(ctx, r.Common) // until the network has what the refs reach
	if err != nil {
		return err
	}
	defer release()
	if f.refs, f.head, err = f.selected(ctx); err != nil {
		return err
	}
	defer func() {
		if f.objects != "" {
			d.networks.release(f.objects)
		}
	}()
	if f.target, err = d.destination(target); err != nil {
		return err
	}
	expires := time.Now().Add(o.Lifetime)
	err = d.importOnce(ctx, target, o.RequestID, func(ctx context.Context, dir string) error {
		if f.objects == "" { // the first call; the path is free
			if err := f.share(ctx); err != nil {
				return WriteError(err)
			}
			release()
		}
		return WriteError(f.write(dir, expires))
	})
	if o.Lifetime > 0 && IsChanged(err) {
		d.expiries.add(target, expires)
	}
	return err
}

// fork is a fork that is being made.
type fork struct {
	*Directories
	source  *repo.Repo
	options ForkOptions
	refs    []refs.Ref
	head    git.RefName // that HEAD names
	objects string      // object directory of the network
	target  string      // path of the new repository
}

// selected returns the refs and the HEAD of the fork.
func (f *fork) selected(ctx context.Context) (list []refs.Ref, head git.RefName, err error) {
	snap, err := f.source.Refs.Snapshot(ctx)
	if err != nil {
		return nil, "", err
	}
	err = snap.Each("", func(ref refs.Ref) (err error) {
		if ref.Target != "" || !f.options.Selects(ref.Name) {
			return nil // symbolic refs other than HEAD are not copied, as in a clone
		}
		ref.Peeled, ref.PeelKnown, err = f.source.PeelRef(ref)
		list = append(list, ref)
		return err
	})
	return list, cmp.Or(snap.Head().Target, BranchPrefix+"main"), cmp.Or(err, f.options.CheckSelected(len(list)))
}

// share makes the source a member of a network, and its objects objects of the network. It sets fork.objects, which the
// caller has to release.
func (f *fork) share(ctx context.Context) error {
	if err := f.sharing.Acquire(ctx, 1); err != nil {
		return err
	}
	defer f.sharing.Release(1)
	own := f.source.Objects.Dirs()[0]
	alternates, err := pack.Alternates(own)
	if err != nil {
		return err
	}
	var objects string
	if len(alternates) == 0 {
		objects, err = f.newNetwork(ctx, own)
	} else {
		objects, err = filepath.EvalSymlinks(alternates[0])
		if err != nil || len(alternates) > 1 || !repo.IsNetwork(objects) {
			return fault.New(fault.Denied, "the repository borrows objects of another one (objects/info/alternates): "+
				"repack it first (git repack -a -d, then remove the file)")
		}
		if err = linkAll(own, objects); err == nil {
			err = f.Sync(objects) // it may have new directories
		}
	}
	if err == nil {
		f.objects = objects
		f.networks.use(objects)
	}
	return err
}

// newNetwork makes a network with the objects of a directory, which borrows them from then on.
func (f *fork) newNetwork(ctx context.Context, own string) (objects string, err error) {
	if err := f.placing.Acquire(ctx, 1); err != nil {
		return "", err
	}
	defer f.placing.Release(1)
	for _, parent := range []string{f.root, filepath.Dir(f.source.Common)} { // links need the file system of the source
		private, err := f.privateDirectory(parent)
		if err != nil {
			return "", err
		}
		objects = filepath.Join(private, repo.NetworksDir, strings.ToLower(rand.Text()), "objects")
		if err = f.fillNetwork(own, objects); err == nil {
			return objects, borrow(own, objects)
		}
		_ = os.RemoveAll(filepath.Dir(objects))
		if !errors.Is(err, syscall.EXDEV) {
			return "", err
		}
	}
	return "", syscall.EXDEV
}

// fillNetwork links the objects of a directory into that of a new network. All is on disk when it returns.
func (f *fork) fillNetwork(own, objects string) error {
	err := os.MkdirAll(filepath.Join(objects, "info"), 0o777)
	if err == nil {
		err = linkAll(own, objects)
	}
	if err == nil {
		err = linkGraphs(own, objects)
	}
	if err == nil {
		err = SyncTree(filepath.Dir(objects))
	}
	if err == nil {
		err = f.Sync(filepath.Dir(filepath.Dir(objects)))
	}
	return err
}

// borrow makes an object directory borrow the objects of a network.
func borrow(objects, network string) error {
	path, err := filepath.Rel(objects, network)
	if err != nil {
		return err
	}
	return disk.ReplaceFile(filepath.Join(objects, "info/alternates"), []byte(path+"\n"))
}

// linkGraphs links the commit-graphs of an object directory into that of a new network.
func linkGraphs(from, to string) error {
	chain := "info/commit-graphs"
	_, err := linkFiles(filepath.Join(from, chain), filepath.Join(to, chain), []string{".graph", ""})
	if err == nil {
		err = os.Link(filepath.Join(from, "info/commit-graph"), filepath.Join(to, "info/commit-graph"))
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// maxScans is how often the packs of a repository are listed until all are linked: another program may repack it.
const maxScans = 10

// linkAll links the objects and commit-graphs of one object directory into another one on the same file system. An
// object that is moved to a pack meanwhile is found there, because loose objects come first.
func linkAll(from, to string) error {
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if name := e.Name(); isFanout(name) {
			if _, err := linkFiles(filepath.Join(from, name), filepath.Join(to, name), nil); err != nil {
				return err
			}
		}
	}
	for range maxScans {
		missed, err := linkFiles(filepath.Join(from, "pack"), filepath.Join(to, "pack"), packOrder)
		if err != nil || !missed {
			return err
		}
	}
	return fault.Retry(fault.Unavailable, fault.RetrySoon, "the repository is being repacked again and again")
}

// packOrder has the extensions of the files of packs that a network has, in the order in which they appear: Git looks
// for indexes. The file of a cruft pack is last, because without it the objects are kept.
var packOrder = []string{".pack", ".rev", ".idx", ".mtimes"}

// linkFiles links the files of a directory into another one: those with the extensions in order, or all of them. Files
// that exist are left alone. missed reports that a file vanished, or that a new one came.
func linkFiles(from, to string, order []string) (missed bool, err error) {
	entries, err := os.ReadDir(from)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if order == nil {
		order = []string{""}
	}
	err = os.MkdirAll(to, 0o777)
	made := false
	for _, extension := range order {
		for _, e := range entries {
			name := e.Name()
			if err != nil || filepath.Ext(name) != extension || strings.HasPrefix(name, "tmp_") ||
				strings.HasPrefix(name, ".tmp-") {
				continue
			}
			switch err = os.Link(filepath.Join(from, name), filepath.Join(to, name)); {
			case err == nil:
				made = true
			case errors.Is(err, fs.ErrExist):
				err = nil
			case errors.Is(err, fs.ErrNotExist):
				missed, err = true, nil
			}
		}
	}
	if err == nil && made {
		err = disk.SyncDir(to)
	}
	return missed, err
}

// destination returns the real path that a new repository will have.
func (d *Directories) destination(path git.RepoPath) (string, error) {
	above, below := d.root, path.String()
	for {
		name, rest, more := strings.Cut(below, "/")
		real, err := filepath.EvalSymlinks(filepath.Join(above, name))
		if !more || errors.Is(err, fs.ErrNotExist) {
			return filepath.Join(above, below), nil
		}
		if err != nil {
			return "", WriteError(err)
		}
		above, below = real, rest
	}
}

// write writes the repository into a directory.
func (f *fork) write(dir string, expires time.Time) error {
	for _, name := range []string{"objects/info", "refs"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o777); err != nil {
			return err
		}
	}
	alternate, err := filepath.Rel(filepath.Join(f.target, "objects"), f.objects)
	if err != nil {
		return err
	}
	config := "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = true\n"
	if f.source.Format != git.SHA1 {
		config = strings.Replace(config, "= 0", "= 1", 1) + "[extensions]\n\tobjectFormat = " +
			f.source.Format.String() + "\n"
	}
	if f.options.Lifetime > 0 {
		section, name, _ := strings.Cut(ExpiryKey, ".")
		config += "[" + section + "]\n\t" + name + " = " + expires.UTC().Format(time.RFC3339) + "\n"
	}
	config += string(f.options.Settings.Text(settingKeys))
	packed := []byte(refs.PackedHeader)
	for i := range f.refs {
		packed = refs.AppendPacked(packed, &f.refs[i])
	}
	files := map[string]string{"HEAD": "ref: " + string(f.head) + "\n", "config": config, "packed-refs": string(packed),
		"objects/info/alternates": alternate + "\n"}
	if f.options.RequestID != "" {
		files[requestFile] = f.options.RequestID
	}
	boundary, err := f.source.Shallow()
	if err != nil {
		return err
	}
	for _, id := range boundary {
		files["shallow"] += fmt.Sprintln(id)
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o666); err != nil {
			return err
		}
	}
	return SyncTree(dir)
}
