// Package lfs measures Git LFS: a server and a mirror of it, against Go's file server on the same machine.
package lfs

import (
	"bufio"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/packhorse-git/packhorse/internal/bench/gitload"
	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
	"github.com/packhorse-git/packhorse/internal/bench/world"
)

// options are the flags of `packhorse-bench lfs`.
type options struct {
	megabytes int
	upload    int // megabytes
	runners   int
	rounds    int
	transfers int
	objects   int
	cuts      int
	gitLFS    string

	program world.Program
}

const help = `Starts a server with a repository whose files are in Git LFS, a mirror of that server, and Go's own file
server (packhorse-bench limit) in a process of its own. All run on this machine, and servers that are compared are
measured in turn. Values are medians of --rounds.

The parts:

  cold    --runners runners fetch one object of --mb MiB at the same time through an empty mirror. Bytes from the
          origin, which a proxy in front of it counts, and the time, against that of one download from the origin
  warm    the same object again: throughput of --runners runners against Go's file server
  cpu     CPU time of the server process for each GB against that of Go's file server, and the memory of --transfers
          transfers that wait for their clients
  batch   time of a batch request for --objects objects that are present: one process, a gateway with a storage node,
          and a mirror
  resume  git-lfs uploads an object of --upload-mb MiB through a proxy that cuts the connection --cuts times. Bytes that
          the proxy read beyond those of the object, with the ones that it dropped at a cut

Runners send what git-lfs sends, and drop the bytes that they get. The part resume needs git-lfs.`

// parts are in the order of the report.
var parts = []world.Part[*lfs]{
	{Name: "cold", Measure: (*lfs).cold},
	{Name: "warm", Measure: (*lfs).warm},
	{Name: "cpu", Measure: (*lfs).cpu},
	{Name: "batch", Measure: (*lfs).batch},
	{Name: "resume", Measure: (*lfs).resume},
}

// Command returns `packhorse-bench lfs`.
func Command(env loadgen.Env) *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "lfs",
		Short: "Measure Git LFS: a server and a mirror, against Go's file server",
		Long:  help,
		Example: `  packhorse-bench lfs
  packhorse-bench lfs cold warm --mb 1024 --runners 30
  packhorse-bench lfs resume --upload-mb 2048 --json`,
	}
	f := cmd.Flags()
	f.IntVar(&o.megabytes, "mb", 1024, "size of the object in MiB")
	f.IntVar(&o.upload, "upload-mb", 2048, "size of the object of the part resume in MiB")
	f.IntVar(&o.runners, "runners", 30, "runners that fetch at the same time")
	f.IntVar(&o.rounds, "rounds", 3, "runs of each comparison")
	f.IntVar(&o.transfers, "transfers", 500, "transfers that wait for their clients")
	f.IntVar(&o.objects, "objects", 10_000, "objects of a batch request")
	f.IntVar(&o.cuts, "cuts", 10, "interruptions of the upload")
	f.StringVar(&o.gitLFS, "git-lfs", "git-lfs", "the git-lfs `PROGRAM` of the part resume")
	check := func() error {
		return cmp.Or(loadgen.Positive(f, "mb", "upload-mb", "rounds", "objects", "cuts"),
			loadgen.AreClients(f, "runners", "transfers"))
	}
	return world.Command(cmd, env, &o.program, parts, check, func(ctx context.Context, _, dir string) (*lfs, error) {
		w, err := world.New(dir, o.program)
		if err == nil {
			err = w.AddHistory(ctx, "app", 3, 2000)
		}
		return &lfs{&o, w}, err
	})
}

// lfs has the servers of one part. They serve the repositories of one root.
type lfs struct {
	*options
	*world.World
}

func (w *lfs) repository() string { return w.Repository("app") }

// own starts a server of the repositories.
func (w *lfs) own(ctx context.Context) *world.Process {
	return world.Must(w.Start(ctx, "serve", "own", world.Public+world.NoSearch, "--root", w.Root()))
}

// split starts a storage node and a gateway.
func (w *lfs) split(ctx context.Context) *world.Process {
	socket := "unix:" + filepath.Join(w.Dir, "node.sock")
	world.Must(w.Start(ctx, "storage", "node", world.NoSearch, "--root", w.Root(), "--listen", socket))
	return world.Must(w.Start(ctx, "gateway", "gateway", world.Public+
		fmt.Sprintf("[[node]]\nname = \"node\"\naddress = %q\n", socket)))
}

// mirror starts an empty mirror of a server behind a link, and fetches its repository, without objects of LFS.
func (w *lfs) mirror(ctx context.Context, of *world.Process, name string) (*world.Process, *world.Link) {
	l := world.Must(w.Link(of.URL[len("http://"):]))
	s := world.Must(w.StartMirror(ctx, name, "http://"+l.Addr()+"/", ""))
	c := gitload.NewClient(s.URL, "")
	defer c.Close()
	world.Check(c.Clone(ctx, "app", 0))
	return s, l
}

// object is the content of a file in LFS.
type object struct {
	oid  string
	size int64
}

// path returns the file of an object below a directory .git or a bare repository, in the layout of git-lfs.
func (o object) path(repository string) string {
	return filepath.Join(repository, "lfs", "objects", o.oid[:2], o.oid[2:4], o.oid)
}

// addObject puts an object of random bytes into a repository. The seed determines its content.
func addObject(repository string, size int64, seed byte, number int) (object, error) {
	temporary := filepath.Join(repository, "object")
	file, err := os.OpenFile(temporary, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o444)
	if err != nil {
		return object{}, err
	}
	hash, buffered := sha256.New(), bufio.NewWriterSize(file, 1<<20)
	key := [32]byte{seed, byte(number), byte(number >> 8), byte(number >> 16)}
	_, err = io.CopyN(io.MultiWriter(hash, buffered), rand.NewChaCha8(key), size)
	err = errors.Join(err, buffered.Flush(), file.Close())
	o := object{hex.EncodeToString(hash.Sum(nil)), size}
	if err == nil {
		err = os.MkdirAll(filepath.Dir(o.path(repository)), 0o755)
	}
	if err == nil {
		err = os.Rename(temporary, o.path(repository))
	}
	return o, err
}
