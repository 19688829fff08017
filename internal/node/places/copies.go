package places

import (
	"bufio"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
)

// Search is the result of a search for copies of objects.
type Search struct {
	Copies   []string // files with copies
	Problems []string // files that cannot be read
	Searched int64    // files that were inflated
	// Members are the other repositories on the disk that share objects.
	Members []git.RepoPath
}

const packMagic = "PACK"

// Pack adds a pack, or an entry of the pack cache, to a search. Git inflates each of its objects in the repository of
// the survey. Other files are ignored.
func (x *Search) Pack(ctx context.Context, s *Survey, name string, ids []git.ObjectID,
	open func() (io.ReadCloser, error)) error {
	file, err := open()
	if errors.Is(err, fs.ErrNotExist) { // it was removed meanwhile
		return nil
	}
	if err != nil {
		return err
	}
	defer file.Close()
	in := bufio.NewReader(file)
	if start, _ := in.Peek(9); len(start) == 9 && string(start[:4]) != packMagic && string(start[5:]) == packMagic {
		in = bufio.NewReader(&unframed{packets: pktline.NewReader(in)})
	}
	if start, _ := in.Peek(4); string(start) != packMagic {
		return nil
	}
	x.Searched++
	made := filepath.Join(s.Repo.Common, "objects/pack")
	defer os.RemoveAll(made)
	if err := os.MkdirAll(made, 0o700); err != nil {
		return WriteError(err)
	}
	err = s.Run(ctx, s.Repo, GitCommand{Args: []string{"index-pack", "--stdin", "--fix-thin"}, Input: in})
	if fault.Is(err, fault.Internal) {
		x.Problems = append(x.Problems, name+": cannot be read: "+err.Error())
		return nil
	}
	if err != nil {
		return err
	}
	isCopied := make(map[git.ObjectID]bool, len(ids))
	for _, id := range ids {
		isCopied[id] = true
	}
	found, err := hasAny(filepath.Dir(made), s.Repo.Format, isCopied)
	if found {
		x.Copies = append(x.Copies, name)
	}
	return err
}

// unframed reads the bytes of side-band 1 (gitprotocol-pack(5)).
type unframed struct {
	packets *pktline.Reader
	rest    []byte
}

func (u *unframed) Read(b []byte) (int, error) {
	for len(u.rest) == 0 {
		_, data, err := u.packets.Next()
		if err != nil {
			return 0, err
		}
		u.rest = data[min(len(data), 1):]
	}
	n := copy(b, u.rest)
	u.rest = u.rest[n:]
	return n, nil
}

// Tree adds all files below a directory.
func (x *Search) Tree(ctx context.Context, s *Survey, dir, root string, ids []git.ObjectID) error {
	return filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		name := strings.TrimPrefix(path, root+"/")
		for _, id := range ids {
			if strings.HasSuffix(path, "/"+id.String()[:2]+"/"+id.String()[2:]) {
				x.Copies = append(x.Copies, name)
			}
		}
		return x.Pack(ctx, s, name, ids, func() (io.ReadCloser, error) { return os.Open(path) })
	})
}

// Copies implements Place.
func (p *dirPlace) Copies(ctx context.Context, run RunGit, o PurgeOptions, others []string) (x Search, err error) {
	f, err := p.family(ctx)
	if err != nil {
		return x, err
	}
	defer f.close()
	s, err := f.survey(run, nil)
	if err != nil {
		return x, err
	}
	for _, m := range f.members[1:] {
		x.Members = append(x.Members, m.Path())
	}
	for _, path := range append(f.objects, others...) {
		if err := x.Tree(ctx, s, path, p.root, o.IDs); err != nil {
			return x, WriteError(err)
		}
	}
	return x, nil
}
