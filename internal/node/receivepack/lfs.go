package receivepack

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/git/refs"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/lfs"
)

// A client of Git LFS uploads objects before it pushes their pointer files. A client without Git LFS, or with its hook
// disabled, pushes pointer files to nothing, and every later checkout fails. So a push is checked between Git's own
// checks and the change of refs.
//
// The blobs of the push are searched for pointer files. Only if the repository lacks an object, Git lists what the new
// refs add to the history, with the names of files. Pointer files in blobs that the history had before are not checked.

// LFSPolicy is what happens to a push that needs LFS objects which the repository does not have.
type LFSPolicy string

const (
	RefuseMissingLFS LFSPolicy = "refuse" // the default
	WarnMissingLFS   LFSPolicy = "warn"   // the client gets the message, and the push is accepted
	AllowMissingLFS  LFSPolicy = "off"    // pushes are not checked
)

const (
	// maxLFSNames is the maximum number of files in the message about missing LFS objects.
	maxLFSNames = 20
	// lfsTimeout bounds the whole check.
	lfsTimeout = 2 * time.Minute
	// reasonMissingLFS is the reason in the report for each ref.
	reasonMissingLFS = "missing LFS objects"
)

// checksLFS reports whether the push is checked for missing LFS objects.
func (p *pushSession) checksLFS() bool {
	return p.target.LFS != nil && p.options.MissingLFS != AllowMissingLFS && p.request.hasPack()
}

// checkLFS returns an error of kind Denied if the push needs LFS objects that the repository does not have. objects is
// the directory with the objects of the push. write gets lines of the message for the client.
func (p *pushSession) checkLFS(ctx context.Context, objects string, write func(text string)) error {
	if !p.checksLFS() || p.hooks.checkedLFS || objects == "" {
		return nil
	}
	p.hooks.checkedLFS = true
	message, err := p.missingLFS(ctx, objects)
	if err != nil {
		p.log.Warn("cannot check the LFS objects of a push", "repository", p.push.Repo.String(), "error", err)
		if p.options.MissingLFS == WarnMissingLFS {
			write("the server cannot check whether the LFS objects of this push are here\n")
			return nil
		}
		err = fault.Wrap(fault.Unavailable, "push not accepted: the server cannot check whether its LFS objects are here",
			err)
		write(fault.Message(err) + "\n")
		return err
	}
	if message == "" {
		return nil
	}
	write(message)
	if p.options.MissingLFS == WarnMissingLFS {
		return nil
	}
	p.hooks.missingLFS = true
	first, _, _ := strings.Cut(message, "\n")
	return fault.New(fault.Denied, "%s", first)
}

// missingLFS returns the message for the client if LFS objects are missing, and otherwise "".
func (p *pushSession) missingLFS(ctx context.Context, objects string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, lfsTimeout)
	defer cancel()
	pushed, err := pack.Open(objects, pack.Options{Format: p.target.Format, Alone: true})
	if err != nil {
		return "", err
	}
	defer pushed.Close()
	blobs := make(map[git.ObjectID]lfs.Object)
	err = lfs.ScanPointers(ctx, pushed, nil, func(f lfs.Pointer) error {
		blobs[f.Blob] = f.Object
		return nil
	})
	if err != nil || len(blobs) == 0 {
		return "", err
	}
	if err := p.removePresent(ctx, blobs); err != nil || len(blobs) == 0 {
		return "", err
	}
	tips, err := p.tipsWithOwnLFS(pushed)
	if err != nil || len(tips) == 0 {
		return "", err
	}
	return p.describeMissingLFS(ctx, objects, tips, blobs)
}

// removePresent removes the pointer files whose objects the repository has.
func (p *pushSession) removePresent(ctx context.Context, blobs map[git.ObjectID]lfs.Object) error {
	ids := make([]git.ObjectID, 0, len(blobs))
	batch := lfs.Batch{Objects: make([]lfs.Object, 0, len(blobs))}
	for id, object := range blobs {
		if object.Size == 0 { // Git LFS uploads no empty files
			delete(blobs, id)
			continue
		}
		ids, batch.Objects = append(ids, id), append(batch.Objects, object)
	}
	statuses, err := p.target.LFS(ctx, batch)
	if err != nil {
		return err
	}
	for i, status := range statuses {
		switch {
		case status.State == lfs.Present:
			delete(blobs, ids[i])
		case status.State == lfs.Refused && !fault.Is(status.Err, fault.Invalid) && // of another size: it is missing
			!fault.Is(status.Err, fault.Denied): // purged
			return status.Err
		}
	}
	return nil
}

// tipsWithOwnLFS returns the new values of refs, without those that have a .lfsconfig with the URL of an LFS server:
// their objects may be there.
func (p *pushSession) tipsWithOwnLFS(pushed *pack.Store) (tips []git.ObjectID, err error) {
	read := func(id git.ObjectID) (git.ObjectType, []byte, error) {
		typ, data, err := pushed.Read(id, 0)
		if fault.Is(err, fault.NotFound) {
			typ, data, err = p.target.Objects.Read(id, 0)
		}
		return typ, data, err
	}
	seen := make(map[git.ObjectID]bool)
	for _, u := range p.push.Updates {
		if u.New.IsZero() || seen[u.New] {
			continue
		}
		seen[u.New] = true
		isElsewhere, err := NamesLFSServer(read, u.New, p.target.Format)
		if err != nil {
			return nil, err
		}
		if !isElsewhere {
			tips = append(tips, u.New)
		}
	}
	return tips, nil
}

// NamesLFSServer reports whether the tree of a commit or tag has a .lfsconfig with the URL of an LFS server. git-lfs
// ignores an invalid file. Errors are those of read.
func NamesLFSServer(read func(git.ObjectID) (git.ObjectType, []byte, error), id git.ObjectID,
	format git.ObjectFormat) (bool, error) {
	text, err := readLFSConfig(read, id, format)
	if err != nil {
		return false, err
	}
	config, err := repo.ParseConfig(text)
	if err != nil {
		return false, nil
	}
	for key, value := range config.All() {
		isURL := key == "lfs.url" || key == "lfs.pushurl" || strings.HasPrefix(key, "remote.") &&
			(strings.HasSuffix(key, ".lfsurl") || strings.HasSuffix(key, ".lfspushurl"))
		if isURL && value != "" {
			return true, nil
		}
	}
	return false, nil
}

// readLFSConfig returns the file .lfsconfig in the tree of a commit or tag; "" if it has none.
func readLFSConfig(read func(git.ObjectID) (git.ObjectType, []byte, error), id git.ObjectID,
	format git.ObjectFormat) (string, error) {
	for range 10 { // tags of tags
		typ, data, err := read(id)
		if err != nil {
			return "", err
		}
		switch typ {
		case git.Tag:
			if id, _, err = pack.ParseTag(data, format); err != nil {
				return "", err
			}
		case git.Commit:
			commit, err := pack.ParseCommit(data, format)
			if err != nil {
				return "", err
			}
			id = commit.Tree
		case git.Tree:
			config := git.ObjectID{}
			err := pack.Entries(data, format, func(mode uint32, name []byte, id git.ObjectID) error {
				if string(name) == ".lfsconfig" && (mode == pack.ModeFile || mode == pack.ModeExecutable) {
					config = id
				}
				return nil
			})
			if err != nil || config.IsZero() {
				return "", err
			}
			_, data, err := read(config)
			return string(data), err
		default:
			return "", nil
		}
	}
	return "", nil
}

// describeMissingLFS finds the files of missing objects in the history that the push adds to tips, and returns the
// message for the client. It is "" if the history has none of them.
func (p *pushSession) describeMissingLFS(ctx context.Context, objects string, tips []git.ObjectID,
	blobs map[git.ObjectID]lfs.Object) (string, error) {
	var env []string
	if own := filepath.Join(p.target.Common, "objects"); objects != own {
		env = process.ObjectsEnv(objects, own)
	}
	input, writer := io.Pipe()
	go func() { writer.CloseWithError(p.writeTips(writer, tips)) }()
	defer input.Close()
	var files strings.Builder
	count := 0
	err := p.revList(ctx, env, input, func(line []byte) error {
		hex, name, _ := bytes.Cut(line, []byte(" "))
		id, err := git.ParseObjectID(hex)
		if err != nil {
			return err
		}
		object, isMissing := blobs[id]
		if !isMissing {
			return nil
		}
		if delete(blobs, id); count < maxLFSNames {
			fmt.Fprintf(&files, "  %s (%s, %d bytes)\n", clean(string(name), maxLFSName), object.OID, object.Size)
		}
		if count++; len(blobs) == 0 {
			return errStop
		}
		return nil
	}, "--objects", "--ignore-missing", "--stdin")
	if err != nil || count == 0 {
		return "", err
	}
	if more := count - maxLFSNames; more > 0 {
		fmt.Fprintf(&files, "  and %d more\n", more)
	}
	return fmt.Sprintf("this repository does not have the LFS objects of %d pushed files:\n%s"+
		"to upload them: git lfs push --all REMOTE\n", count, files.String()), nil
}

// maxLFSName is the maximum length in bytes of a file's name in a message.
const maxLFSName = 500

// writeTips writes the input of git rev-list for the history that the push adds: tips, without the history of all refs
// before it.
func (p *pushSession) writeTips(w io.Writer, tips []git.ObjectID) error {
	buffered := bufio.NewWriter(w)
	for _, tip := range tips {
		fmt.Fprintln(buffered, tip)
	}
	err := p.before.Each("", func(ref refs.Ref) error {
		_, err := fmt.Fprintf(buffered, "^%s\n", ref.ID)
		return err
	})
	return errors.Join(err, buffered.Flush())
}
