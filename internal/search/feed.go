package search

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/proto/workerv1"
	"github.com/packhorse-git/packhorse/internal/search/ipc"
)

const (
	modeType    = 0o170000
	modeGitlink = 0o160000
	// maxBranches is the maximum number of branches of a repository.
	maxBranches = 64
	// maxDiffering is the maximum number of files that differ between the branches of a repository.
	maxDiffering = 1_000_000
)

// document writes a file. Entries other than files are not indexed.
func document(w io.Writer, f *File, branches uint64) error {
	if f.Gone || f.Mode&modeType == modeGitlink || len(f.Path) == 0 {
		return nil
	}
	return ipc.Write(w, &workerv1.IndexRequest{Document: &workerv1.Document{
		Branches: branches, Size: max(f.Size, 0), Path: f.Path, Content: f.Content,
	}})
}

// meter adds up the files and bytes of a repository's index. A limit of zero means none.
type meter struct {
	files, bytes       int64
	maxFiles, maxBytes int64
	maxFile            int64 // larger files are indexed by name only
}

// errTooLarge is in the chain of an error that reports more files or bytes than are indexed of a repository.
var errTooLarge = errors.New("too large")

func (m *meter) add(f *File) error {
	if f.Gone {
		return nil
	}
	m.files++
	if f.Size <= m.maxFile {
		m.bytes += max(f.Size, 0)
	}
	switch {
	case m.maxFiles > 0 && m.files > m.maxFiles:
		return fault.Wrap(fault.Exhausted, fmt.Sprintf(
			"the repository is not indexed: it has more than %d files (index.max_repository_files)", m.maxFiles), errTooLarge)
	case m.maxBytes > 0 && m.bytes > m.maxBytes:
		return fault.Wrap(fault.Exhausted, fmt.Sprintf(
			"the repository is not indexed: its files have more than %d bytes (index.max_repository_bytes)", m.maxBytes),
			errTooLarge)
	}
	return nil
}

// measure returns an error if a commit is too large for the index. It reads no content, so that a few objects with
// millions of paths do not keep the lane busy.
func (e *Engine) measure(ctx context.Context, repository git.RepoPath, commit git.ObjectID, m meter) error {
	return e.o.Source.Files(ctx, repository, commit, git.ObjectID{}, 0, func(f File) error { return m.add(&f) })
}

// full feeds all files of branches: those of the first one, and then the differences of each other one. A file that is
// equal in several branches is one document.
func (e *Engine) full(repository git.RepoPath, heads []Head, run *job) feeder {
	return func(ctx context.Context, w io.Writer) error {
		commits := make([]git.ObjectID, len(heads))
		for i, h := range heads {
			commits[i] = h.Commit
		}
		if len(commits) == 0 {
			return run.finish(w)
		}
		if run.maxFiles == 0 && run.meter.maxFiles+run.meter.maxBytes > 0 { // otherwise there are few
			if err := e.measure(ctx, repository, commits[0], run.meter); err != nil {
				return err
			}
		}
		differs, versions, err := e.differences(ctx, repository, commits)
		if err != nil {
			return err
		}
		all := uint64(1)<<len(commits) - 1
		if len(commits) == maxBranches {
			all = ^uint64(0)
		}
		err = e.o.Source.Files(ctx, repository, commits[0], git.ObjectID{}, e.o.MaxFile, func(f File) error {
			return run.feed(w, &f, all&^differs[string(f.Path)])
		})
		for i := 1; i < len(commits) && err == nil; i++ {
			err = e.o.Source.Files(ctx, repository, commits[i], commits[0], e.o.MaxFile, func(f File) error {
				key := versionKey(&f)
				mask := versions[key]
				delete(versions, key)
				if f.Gone || mask == 0 {
					return nil
				}
				return run.feed(w, &f, mask)
			})
		}
		if err != nil {
			return err
		}
		return run.finish(w)
	}
}

func versionKey(f *File) string { return string(f.Path) + "\x00" + string(f.ID.Raw()) }

// differences returns for each path the branches in which it differs from the first one, and the branches of each of
// its versions.
func (e *Engine) differences(ctx context.Context, repository git.RepoPath,
	commits []git.ObjectID) (differs, versions map[string]uint64, err error) {
	differs, versions = map[string]uint64{}, map[string]uint64{}
	for i := 1; i < len(commits); i++ {
		if commits[i] == commits[0] {
			continue
		}
		err := e.o.Source.Files(ctx, repository, commits[i], commits[0], 0, func(f File) error {
			if len(versions) >= maxDiffering {
				return fault.New(fault.Exhausted, "more than %d files differ between the branches", maxDiffering)
			}
			differs[string(f.Path)] |= 1 << i
			if !f.Gone {
				versions[versionKey(&f)] |= 1 << i
			}
			return nil
		})
		if err != nil {
			return nil, nil, err
		}
	}
	return differs, versions, nil
}

// delta feeds the differences between two commits of the only branch, up to a number of files.
func (e *Engine) delta(repository git.RepoPath, from, to git.ObjectID, run *job, limit int) feeder {
	return func(ctx context.Context, w io.Writer) error {
		n := 0
		err := e.o.Source.Files(ctx, repository, to, from, e.o.MaxFile, func(f File) error {
			if n++; n > limit {
				return errTooMuch
			}
			if err := ipc.Write(w, &workerv1.IndexRequest{ChangedPath: f.Path}); err != nil {
				return err
			}
			return run.feed(w, &f, 1)
		})
		if err != nil {
			return err
		}
		return run.finish(w)
	}
}

// errTooMuch reports more files than the fast lane accepts.
var errTooMuch = errors.New("there are more files than are indexed at once beside others")

// feed counts and writes a file.
func (run *job) feed(w io.Writer, f *File, branches uint64) error {
	if err := run.meter.add(f); err != nil {
		return err
	}
	if n := run.files.Add(1); run.maxFiles > 0 && n > run.maxFiles {
		return errTooMuch
	}
	return document(w, f, branches)
}

// finish makes the process move the new files to their places. If it is killed meanwhile, the files are inconsistent.
func (run *job) finish(w io.Writer) error {
	run.allSent.Store(true)
	return ipc.Write(w, &workerv1.IndexRequest{Finish: true})
}
