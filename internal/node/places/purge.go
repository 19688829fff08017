package places

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/git/refs"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/lfs"
)

// PurgeOptions configure a purge.
type PurgeOptions struct {
	IDs   []git.ObjectID
	Known []git.ObjectID // that were purged before, and need not exist
	LFS   []lfs.OID
	// Hidden is called with the repositories that are purged when their objects cannot be read from now on.
	Hidden func(members []git.RepoPath)
}

// Purged is the result of a purge.
type Purged struct {
	Objects     int      // that were removed: those that were named, and unreachable ones that need them
	Reflogs     int      // values in reflogs that reached an object
	Files       []string // that were removed, on the disk below the root, or in the bucket
	Nodes       []string // that have removed the objects, in a store
	Outstanding []string // nodes that have not confirmed it
	Problems    []string // what could not be removed
	Notes       []string // what the purge leaves in place, and why
	// Members are the repositories on the disk that were purged together. The caller removes their LFS objects.
	Members []git.RepoPath
}

const (
	// MaxPurged is the maximum number of objects that a repository remembers as purged.
	MaxPurged = 1000
	// maxPurging is the maximum number of other objects that are hidden while they are being removed.
	maxPurging = 1000
	// maxReaching is the maximum number of refs that a refusal names.
	maxReaching = 3
)

// errStop ends the output of a Git command early.
var errStop = errors.New("enough output")

// NamedTip is a value of a ref, for a Survey.
type NamedTip struct {
	Name string // for people
	ID   git.ObjectID
}

// Survey is a repository with the refs of all repositories that share objects. Its Git commands find what these reach.
type Survey struct {
	Repo *repo.Repo
	Run  RunGit
	Tips []NamedTip
}

// OpenSurvey makes a repository in dir that borrows object directories, and has the tips as refs. boundary is that of a
// shallow repository. The caller closes Repo and removes dir.
func OpenSurvey(run RunGit, dir string, format git.ObjectFormat, objects []string, tips []NamedTip,
	boundary []git.ObjectID) (*Survey, error) {
	err := os.MkdirAll(filepath.Join(dir, "objects/info"), 0o700)
	if err == nil {
		err = os.MkdirAll(filepath.Join(dir, "refs"), 0o700)
	}
	packed := []byte(refs.PackedHeader)
	for i := range tips {
		packed = refs.AppendPacked(packed, &refs.Ref{Name: git.RefName(fmt.Sprintf("refs/tips/%09d", i)), ID: tips[i].ID})
	}
	packed = bytes.Replace(packed, []byte(" peeled fully-peeled"), nil, 1)
	// git fsck would complain about commits that were removed and are in an old commit-graph.
	config := "[core]\n\trepositoryformatversion = 1\n\tbare = true\n\tcommitGraph = false\n" +
		"[extensions]\n\tobjectFormat = " + format.String() + "\n"
	files := map[string]string{"HEAD": "ref: refs/heads/none\n", "config": config, "packed-refs": string(packed)}
	for _, id := range boundary {
		files["shallow"] += id.String() + "\n"
	}
	if len(objects) > 0 {
		files["objects/info/alternates"] = strings.Join(objects, "\n") + "\n"
	}
	for name, text := range files {
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600)
		}
	}
	if err != nil {
		return nil, WriteError(err)
	}
	r, err := repo.Open(dir, repo.Options{})
	return &Survey{Repo: r, Run: run, Tips: tips}, err
}

// Doomed returns the objects to remove in order to purge some: these, and all that need one of them. The error is
// Precondition if a tip reaches one, and names the tips.
func (s *Survey) Doomed(ctx context.Context, o PurgeOptions) (map[git.ObjectID]bool, error) {
	isUnreachable, err := s.Unreachable(ctx)
	if err != nil {
		return nil, err
	}
	for _, id := range o.IDs {
		found, err := s.Repo.Objects.Has(id)
		switch {
		case err != nil:
			return nil, err
		case !found && !slices.Contains(o.Known, id):
			return nil, fault.New(fault.NotFound, "the repository has no object %s", id)
		case found && !isUnreachable[id]:
			names, err := s.reaching(ctx, id)
			return nil, cmp.Or(err, fault.New(fault.Precondition, "object %s cannot be purged, because refs reach it: %s; "+
				"change or remove these refs first", id, names))
		}
	}
	if err := s.checkPointers(ctx, o.LFS, isUnreachable); err != nil {
		return nil, err
	}
	return s.needing(o.IDs, isUnreachable)
}

// needing returns some objects, and those of a set that need one of them. Its memory is that of the result and of one
// path through the objects. Afterwards the values of the set are false.
func (s *Survey) needing(ids []git.ObjectID, set map[git.ObjectID]bool) (map[git.ObjectID]bool, error) {
	doomed := make(map[git.ObjectID]bool)
	for _, id := range ids {
		doomed[id] = true
	}
	for id := range set {
		for path := []git.ObjectID{id}; len(path) > 0; {
			last := len(path) - 1
			at := path[last]
			if !set[at] {
				path = path[:last]
				continue
			}
			err := s.eachNeed(at, func(need git.ObjectID) {
				if doomed[need] {
					doomed[at] = true
				} else if set[need] { // not examined yet
					path = append(path, need)
				}
			})
			if err != nil {
				return nil, err
			}
			if len(path) == last+1 || doomed[at] {
				path, set[at] = path[:last], false
			}
		}
	}
	return doomed, nil
}

// checkPointers returns an error if a tip reaches a pointer file of an LFS object.
func (s *Survey) checkPointers(ctx context.Context, ids []lfs.OID, isUnreachable map[git.ObjectID]bool) error {
	if len(ids) == 0 {
		return nil
	}
	return lfs.ScanPointers(ctx, s.Repo.Objects, nil, func(p lfs.Pointer) error {
		if !slices.Contains(ids, p.OID) || isUnreachable[p.Blob] {
			return nil
		}
		names, err := s.reaching(ctx, p.Blob)
		return cmp.Or(err, fault.New(fault.Precondition, "LFS object %s cannot be purged, because refs reach its pointer "+
			"file %s: %s; change or remove these refs first", p.OID, p.Blob, names))
	})
}

// Unreachable returns the objects that no tip reaches.
func (s *Survey) Unreachable(ctx context.Context) (map[git.ObjectID]bool, error) {
	found := make(map[git.ObjectID]bool)
	args := []string{"fsck", "--unreachable", "--connectivity-only", "--no-progress", "--no-reflogs"}
	if len(s.Tips) == 0 { // git fsck would list nothing
		args = []string{"cat-file", "--batch-all-objects", "--batch-check=unreachable %(objecttype) %(objectname)"}
	}
	err := s.Run(ctx, s.Repo, GitCommand{
		Args: args,
		Output: func(r io.Reader) error {
			return eachLine(r, func(line string) error {
				if fields := strings.Fields(line); len(fields) == 3 && fields[0] == "unreachable" {
					id, err := git.ParseObjectID(fields[2])
					found[id] = true
					return err
				}
				return nil
			})
		}})
	if fault.Is(err, fault.Internal) {
		err = fault.Wrap(fault.Corrupt, "the repository is damaged, so what refs reach cannot be determined", err)
	}
	return found, err
}

// eachLine calls fn with each line.
func eachLine(r io.Reader, fn func(line string) error) error {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		if err := fn(lines.Text()); err != nil {
			return err
		}
	}
	return lines.Err()
}

// eachNeed calls fn with each object that an object names.
func (s *Survey) eachNeed(id git.ObjectID, fn func(git.ObjectID)) error {
	typ, _, err := s.Repo.Objects.Header(id)
	if err != nil || typ == git.Blob {
		return err
	}
	_, data, err := s.Repo.Objects.Read(id, 0)
	if err != nil {
		return err
	}
	switch typ {
	case git.Tree:
		return pack.Entries(data, s.Repo.Format, func(_ uint32, _ []byte, entry git.ObjectID) error { fn(entry); return nil })
	case git.Tag:
		target, _, err := pack.ParseTag(data, s.Repo.Format)
		fn(target)
		return err
	}
	c, err := pack.ParseCommit(data, s.Repo.Format)
	fn(c.Tree)
	for _, parent := range c.Parents {
		fn(parent)
	}
	return err
}

// reaching names some tips that reach an object.
func (s *Survey) reaching(ctx context.Context, id git.ObjectID) (string, error) {
	var names []string
	var clean strings.Builder
	var search func(tips []NamedTip) error
	search = func(tips []NamedTip) error {
		if len(tips) == 0 || len(names) > maxReaching {
			return nil
		}
		var input strings.Builder
		for _, tip := range tips {
			fmt.Fprintln(&input, tip.ID)
		}
		found, err := s.Reaches(ctx, input.String()+clean.String(), map[git.ObjectID]bool{id: true})
		switch {
		case err != nil:
			return err
		case !found:
			clean.WriteString("^" + strings.ReplaceAll(strings.TrimSpace(input.String()), "\n", "\n^") + "\n")
			return nil
		case len(tips) == 1:
			names = append(names, tips[0].Name)
			return nil
		}
		if err := search(tips[:len(tips)/2]); err != nil {
			return err
		}
		return search(tips[len(tips)/2:])
	}
	err := search(s.Tips)
	if len(names) > maxReaching {
		names[maxReaching] = "and others"
	}
	return strings.Join(names, ", "), err
}

// Reaches reports whether the revisions of an input of git rev-list reach one of some objects.
func (s *Survey) Reaches(ctx context.Context, input string, ids map[git.ObjectID]bool) (found bool, err error) {
	err = s.Run(ctx, s.Repo, GitCommand{Args: []string{"rev-list", "--objects", "--stdin"}, Stdin: input,
		Output: func(r io.Reader) error {
			return eachLine(r, func(line string) error {
				text, _, _ := strings.Cut(line, " ")
				if id, err := git.ParseObjectID(text); err != nil || !ids[id] {
					return err
				}
				found = true
				return errStop
			})
		}})
	if found {
		err = nil
	}
	return found, err
}

// Rewrite replaces the packs in an object directory that have objects of a set by packs without these. run runs Git
// with this object directory.
func Rewrite(ctx context.Context, run func(GitCommand) error, dir string, format git.ObjectFormat,
	doomed map[git.ObjectID]bool) error {
	for id := range doomed { // loose objects
		if err := removeFile(filepath.Join(dir, id.String()[:2], id.String()[2:])); err != nil {
			return WriteError(err)
		}
	}
	packs, err := filepath.Glob(filepath.Join(dir, "pack/*.idx"))
	for _, path := range packs {
		if err := ctx.Err(); err != nil {
			return err
		}
		kept, has, err := without(path, format, doomed)
		if err != nil {
			return err
		}
		if !has {
			continue
		}
		base := strings.TrimSuffix(path, ".idx")
		if kept != "" {
			if err := repack(run, dir, base, kept); err != nil {
				return err
			}
		}
		files, err := filepath.Glob(base + ".*")
		for _, path := range files {
			err = errors.Join(err, os.Remove(path))
		}
		if err != nil {
			return WriteError(err)
		}
	}
	return err
}

// without returns the IDs of the objects of a pack that are not in a set, one on each line, and whether it has others.
func without(idx string, format git.ObjectFormat, set map[git.ObjectID]bool) (kept string, has bool, err error) {
	index, err := pack.OpenIndex(idx, format)
	if err != nil {
		return "", false, err
	}
	defer index.Close()
	err = index.Do(func(t *pack.Table) error {
		for id := range maps.Keys(set) {
			_, found := t.Find(id.Raw())
			has = has || found
		}
		if !has {
			return nil
		}
		var b []byte
		for i := range t.Len() {
			if id := git.RawObjectID(t.ID(i)); !set[id] {
				b = append(id.AppendHex(b), '\n')
			}
		}
		kept = string(b)
		return nil
	})
	return kept, has, err
}

// repack makes a pack with the objects of another one that are listed. It has the time of that one, which is the age of
// its unreachable objects, and is kept if that one is.
func repack(run func(GitCommand) error, dir, base, list string) error {
	var name string
	err := run(GitCommand{Args: []string{"pack-objects", "-q", "--delta-base-offset", filepath.Join(dir, "pack/pack")},
		Stdin: list, Output: func(r io.Reader) error {
			return eachLine(r, func(line string) error { name = strings.TrimSpace(line); return nil })
		}})
	if err != nil {
		return err
	}
	made := filepath.Join(dir, "pack/pack-"+name)
	info, err := os.Stat(base + ".pack")
	if err == nil {
		err = os.Chtimes(made+".pack", info.ModTime(), info.ModTime())
	}
	if keep, keepErr := os.ReadFile(base + ".keep"); err == nil && keepErr == nil {
		err = os.WriteFile(made+".keep", keep, 0o444)
	}
	return WriteError(err)
}
