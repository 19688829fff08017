package ingest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/disk"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/node/places"
)

// quarantinePrefix begins the names of the directories of new objects, among the objects of their repository. Git
// removes old directories of this name itself.
const quarantinePrefix = "tmp_objdir-ingest-"

// takeObjects fetches the missing objects into a quarantine, checks them, and moves them to their place.
func (i *ingestion) takeObjects(ctx context.Context) error {
	wants, err := i.wants()
	if err != nil {
		return err
	}
	if len(wants) > 0 {
		if err := i.fetch(ctx, wants); err != nil {
			return err
		}
	}
	if err := i.checkConnectivity(ctx); err != nil {
		return err
	}
	if i.quarantine == "" {
		return nil
	}
	if err := i.install(); err != nil {
		return places.WriteError(err)
	}
	return i.Refresh()
}

// fetch writes the pack of the origin to the quarantine. Git checks each object, and that all objects that it refers to
// exist.
func (i *ingestion) fetch(ctx context.Context, wants []git.ObjectID) error {
	dir, err := os.MkdirTemp(filepath.Join(i.Common, "objects"), quarantinePrefix)
	if err != nil {
		return places.WriteError(err)
	}
	i.quarantine = dir
	pack, err := i.Fetch(ctx, wants, i.haves(ctx))
	if err != nil {
		return err
	}
	defer pack.Close()
	counted := &countingReader{r: pack}
	args := []string{"index-pack", "--stdin", "--fix-thin", "--strict"}
	if list := fsckList(i.Fsck); list != "" {
		args[3] += "=" + list
	}
	if i.MaxPack > 0 {
		args = append(args, "--max-input-size="+strconv.FormatInt(i.MaxPack, 10))
	}
	if i.Progress != nil {
		args = append(args, "-v")
	}
	err = i.git(ctx, args, counted)
	i.result.Bytes = counted.n
	switch {
	case counted.err != nil: // Git fails because of that
		return counted.err
	case i.MaxPack > 0 && counted.n > i.MaxPack:
		return fault.Wrap(fault.Invalid, "the pack of the origin is larger than "+strconv.FormatInt(i.MaxPack, 10)+" bytes",
			err)
	}
	return i.objectError("Git refuses the objects of the origin", err)
}

// checkConnectivity checks that the repository has all objects that the new refs reach.
func (i *ingestion) checkConnectivity(ctx context.Context) error {
	var tips bytes.Buffer
	for _, at := range i.changed {
		tips.Write(i.packed[at].ID.AppendHex(tips.AvailableBuffer()))
		tips.WriteByte('\n')
	}
	return i.objectError("the origin did not send all objects", i.git(ctx,
		[]string{"rev-list", "--objects", "--stdin", "--not", "--all", "--quiet", "--alternate-refs"}, &tips))
}

// objectError returns the error of a check of objects.
func (i *ingestion) objectError(msg string, err error) error {
	err = places.GitError(i.Common, err)
	if fault.Is(err, fault.Internal) {
		return fault.Wrap(fault.Corrupt, msg, err)
	}
	return err
}

// git runs a Git command that sees the objects in the quarantine.
func (i *ingestion) git(ctx context.Context, args []string, stdin io.Reader) error {
	c := process.Command{Class: Class, Subcommand: args[0], Stdin: stdin, Stderr: i.Progress,
		Grace: places.MaintainGrace, Config: i.HooksOff(), Repository: i.Common,
		Args: append([]string{"-c", "safe.directory=*", "-c", "core.fsync=all", "--git-dir=" + i.Common}, args...)}
	if i.quarantine != "" {
		c.Env = append(process.ObjectsEnv(i.quarantine, filepath.Join(i.Common, "objects")),
			"GIT_QUARANTINE_PATH="+i.quarantine)
	}
	return i.Runner.Run(ctx, c)
}

// install moves the packs from the quarantine to their place. An index comes last, because it makes its pack visible.
func (i *ingestion) install() error {
	from, to := filepath.Join(i.quarantine, "pack"), filepath.Join(i.Common, "objects/pack")
	entries, err := os.ReadDir(from)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	isIndex := func(e fs.DirEntry) int {
		if strings.HasSuffix(e.Name(), ".idx") {
			return 1
		}
		return 0
	}
	slices.SortStableFunc(entries, func(a, b fs.DirEntry) int { return isIndex(a) - isIndex(b) })
	for _, e := range entries {
		if err := os.Rename(filepath.Join(from, e.Name()), filepath.Join(to, e.Name())); err != nil {
			return err
		}
	}
	return disk.SyncDir(to)
}

func (i *ingestion) removeQuarantine() {
	if i.quarantine != "" {
		_ = os.RemoveAll(i.quarantine) // RemoveLeftovers tries again
	}
}

// RemoveLeftovers removes what an earlier process that was killed during Run left in the common directory of a
// repository: quarantines, temporary packs and lock files. The caller has claimed the repository, because maintenance
// has temporary files, too. Only Run may change its refs, and does not run.
func RemoveLeftovers(commonDir string, log *slog.Logger) error {
	var errs []error
	for _, pattern := range []string{"objects/" + quarantinePrefix + "*", "objects/pack/tmp_*", "objects/pack/.tmp-*",
		"packed-refs.lock", "packed-refs.new", "HEAD.lock"} {
		found, err := filepath.Glob(filepath.Join(escapeGlob(commonDir), pattern))
		errs = append(errs, err)
		for _, left := range found {
			errs = append(errs, os.RemoveAll(left))
			log.Info("removed a leftover of an interrupted update", "path", left)
		}
	}
	return errors.Join(errs...)
}

// escapeGlob returns a pattern of filepath.Glob that matches a path only.
func escapeGlob(path string) string {
	return strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`).Replace(path)
}

// countingReader counts the bytes of a pack, and keeps the error of reading it.
type countingReader struct {
	r   io.Reader
	n   int64
	err error
}

func (c *countingReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	if err != nil && err != io.EOF {
		c.err = err
	}
	return n, err
}
