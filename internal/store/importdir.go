package store

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/lfs"
	"github.com/packhorse-git/packhorse/internal/node/places"
	"github.com/packhorse-git/packhorse/internal/store/replog"
)

// directory is a bare repository to import, with the refs and loose objects of it in a temporary repository.
type directory struct {
	dir    string
	temp   string // a repository that borrows the objects of dir
	format git.ObjectFormat
	head   git.RefName
	config []replog.Setting
	packs  []string // paths without extensions
	refs   int
}

// readDirectory reads what a bare repository has, and refuses one that is not complete in itself.
func readDirectory(ctx context.Context, g gitRunner, dir string) (*directory, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if err := refuseIncomplete(dir); err != nil {
		return nil, err
	}
	temp, err := os.MkdirTemp("", "packhorse-import-")
	if err != nil {
		return nil, err
	}
	d := &directory{dir: dir, temp: temp}
	for _, step := range []func(context.Context, gitRunner) error{
		d.readConfig, d.readHead, d.borrow, d.readRefs, d.packLoose, d.check, d.findPacks,
	} {
		if err := step(ctx, g); err != nil {
			d.close()
			return nil, err
		}
	}
	return d, nil
}

func (d *directory) close() { _ = os.RemoveAll(d.temp) }

// refuseIncomplete refuses repositories that need others, or that lack a part of the history.
func refuseIncomplete(dir string) error {
	for _, refusal := range []struct{ file, problem, remedy string }{
		{"objects/info/alternates", "it borrows objects of another repository", "git repack -a -d, and remove the file"},
		{"objects/info/http-alternates", "it borrows objects over HTTP", "git repack -a -d, and remove the file"},
		{"shallow", "it is shallow: it does not have the whole history", "git fetch --unshallow"},
		{"info/grafts", "it has grafts, which change the history", "git replace --convert-graft-file"},
		{"commondir", "it is a worktree", "import its main repository"},
	} {
		text, err := os.ReadFile(filepath.Join(dir, filepath.FromSlash(refusal.file)))
		if err == nil && len(bytes.TrimSpace(text)) > 0 {
			return fault.New(fault.Invalid, "%s (%s): %s", refusal.problem, refusal.file, refusal.remedy)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if marks, _ := places.FindMirrorMarks(dir, repo.Options{}); marks.Any() {
		return fault.New(fault.Denied, "it is a mirror, and the import would have other readers: make an ordinary "+
			"repository of it (packhorse mirror detach), or leave it out")
	}
	if promisors, _ := filepath.Glob(filepath.Join(escapeGlob(dir), "objects", "pack", "*.promisor")); promisors != nil {
		return fault.New(fault.Invalid, "it is a partial clone: %s: git fetch --refetch --no-filter", promisors[0])
	}
	return nil
}

// refuseHooks refuses repositories whose hooks decide about pushes: a store has no hooks.
func refuseHooks(dir string) error {
	hooks, err := repo.PushHooks(dir, repo.Options{})
	if err != nil || len(hooks) == 0 {
		return err
	}
	return fault.New(fault.Invalid, "it has hooks (%s), which a store does not have: use the server's hooks "+
		"(push.hooks_dir), and import it with --ignore-hooks", hooks[0].Name)
}

func escapeGlob(path string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}

func (d *directory) readConfig(ctx context.Context, g gitRunner) error {
	out, err := g.run(ctx, d.dir, nil, "config", "--file", filepath.Join(d.dir, "config"), "--null", "--list")
	if err != nil {
		return fault.Wrap(fault.Invalid, "its configuration cannot be read", err)
	}
	d.format = git.SHA1
	for entry := range strings.SplitSeq(strings.TrimSuffix(out, "\x00"), "\x00") {
		key, value, hasValue := strings.Cut(entry, "\n")
		if !hasValue {
			value = "true"
		}
		section, _, _ := strings.Cut(key, ".")
		switch {
		case key == "extensions.objectformat":
			if d.format, err = git.ParseObjectFormat(value); err != nil {
				return fault.Wrap(fault.Invalid, "its object format is not supported", err)
			}
		case key == "extensions.partialclone":
			return fault.New(fault.Invalid, "it is a partial clone of %s: git fetch --refetch --no-filter", value)
		case key == "core.bare" && value == "false":
			return fault.New(fault.Invalid, "it is not bare: make a bare clone of it")
		case key == "include.path" || section == "includeif":
			return fault.New(fault.Invalid, "its configuration includes another file, which might hide refs: "+
				"move the settings, and remove %s", key)
		case key == "receive.fsck.skiplist":
			return fault.New(fault.Invalid, "its receive.fsck.skipList names a file, which a store does not have, so that "+
				"git would refuse each push: git config --unset receive.fsck.skipList")
		default:
			if s := (replog.Setting{Key: key, Value: value}); s.IsAllowed() {
				d.config = append(d.config, s)
			}
		}
	}
	return nil
}

func (d *directory) readHead(ctx context.Context, g gitRunner) error {
	out, err := g.run(ctx, d.dir, nil, "symbolic-ref", "HEAD")
	if err == nil {
		d.head, err = git.ParseRefName(strings.TrimSuffix(out, "\n"))
	}
	return fault.Wrap(fault.Invalid, `its HEAD does not name a branch: write "ref: refs/heads/main" into its file HEAD`, err)
}

// borrow makes the temporary repository.
func (d *directory) borrow(ctx context.Context, g gitRunner) error {
	if _, err := g.run(ctx, d.temp, nil, "init", "--quiet", "--bare", "--object-format="+d.format.String()); err != nil {
		return err
	}
	objects := filepath.Join(d.dir, "objects")
	return os.WriteFile(filepath.Join(d.temp, "objects", "info", "alternates"), []byte(objects+"\n"), 0o600)
}

// readRefs writes the refs as packed-refs into the temporary repository, and lets git add what annotated tags point to.
func (d *directory) readRefs(ctx context.Context, g gitRunner) error {
	packed, err := os.Create(filepath.Join(d.temp, "packed-refs"))
	if err != nil {
		return err
	}
	defer packed.Close()
	out := bufio.NewWriter(packed)
	count := lineCounter{Writer: out}
	_, _ = out.WriteString("# pack-refs with: sorted \n")
	err = g.pipe(ctx, d.dir, nil, &count, "for-each-ref", "--format=%(objectname) %(refname)")
	if err = errors.Join(err, out.Flush()); err != nil {
		return fault.Wrap(fault.Invalid, "its refs cannot be read", err)
	}
	d.refs = count.lines
	_, err = g.run(ctx, d.temp, nil, "pack-refs", "--all")
	return fault.Wrap(fault.Invalid, "its refs cannot be packed", err)
}

// lineCounter counts lines.
type lineCounter struct {
	io.Writer
	lines int
}

func (c *lineCounter) Write(b []byte) (int, error) {
	c.lines += bytes.Count(b, []byte("\n"))
	return c.Writer.Write(b)
}

// packLoose packs loose objects that are in no pack into the temporary repository.
func (d *directory) packLoose(ctx context.Context, g gitRunner) error {
	dirs, err := filepath.Glob(filepath.Join(escapeGlob(d.dir), "objects", "[0-9a-f][0-9a-f]"))
	if err != nil {
		return err
	}
	var ids bytes.Buffer
	for _, dir := range dirs {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if id, err := git.ParseObjectID(filepath.Base(dir) + e.Name()); err == nil {
				fmt.Fprintln(&ids, id)
			}
		}
	}
	if ids.Len() == 0 {
		return nil
	}
	_, err = g.run(ctx, d.temp, &ids, "pack-objects", "--quiet", "--incremental",
		filepath.Join(d.temp, "objects/pack/pack"))
	return fault.Wrap(fault.Corrupt, "its loose objects cannot be packed: git fsck", err)
}

// check makes sure that all objects of the history are there.
func (d *directory) check(ctx context.Context, g gitRunner) error {
	_, err := g.run(ctx, d.temp, nil, "rev-list", "--objects", "--all", "--quiet")
	return fault.Wrap(fault.Corrupt, "its history is not complete: git fsck", err)
}

func (d *directory) findPacks(context.Context, gitRunner) error {
	for _, dir := range []string{d.dir, d.temp} {
		list, err := filepath.Glob(filepath.Join(escapeGlob(dir), "objects", "pack", "pack-*.idx"))
		if err != nil {
			return err
		}
		for _, idx := range list {
			d.packs = append(d.packs, strings.TrimSuffix(idx, ".idx"))
		}
	}
	return nil
}

// bytes returns the size of the files to upload.
func (d *directory) bytes() (total int64) {
	files := []string{filepath.Join(d.temp, "packed-refs")}
	for _, base := range d.packs {
		files = append(files, base+".pack", base+".idx")
	}
	for _, file := range files {
		if info, err := os.Stat(file); err == nil {
			total += info.Size()
		}
	}
	_ = lfsFiles(d.dir, func(_ lfs.OID, _ string, size int64) error {
		total += size
		return nil
	})
	return total
}

// upload uploads packs, LFS objects and refs, and names them in the first record.
func (d *directory) upload(ctx context.Context, up *uploader, first *replog.Record) error {
	txn := replog.NewID()
	for _, base := range d.packs {
		p, err := up.pack(ctx, base, txn)
		if err != nil {
			return err
		}
		p.Since = 1
		first.Packs = append(first.Packs, p)
	}
	if err := up.lfs(ctx, d.dir); err != nil {
		return err
	}
	if d.refs == 0 {
		return nil
	}
	key := "refs/1-" + txn
	f, err := up.file(ctx, key, filepath.Join(d.temp, "packed-refs"))
	if err != nil {
		return err
	}
	first.Refs = replog.Refs{Checkpoint: key, SHA256: f.SHA256, Bytes: f.Bytes, Count: d.refs}
	return nil
}
