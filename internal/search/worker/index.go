package worker

import (
	"bufio"
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"log"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/sourcegraph/zoekt"
	"github.com/sourcegraph/zoekt/build"
	zoektquery "github.com/sourcegraph/zoekt/query"
	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/proto/workerv1"
	"github.com/packhorse-git/packhorse/internal/search/ipc"
)

// IndexOptions configures an index worker.
type IndexOptions struct {
	Build  ipc.Build
	Memory int64 // bytes of heap; 0: no limit
	In     io.Reader
	Out    io.Writer
}

// Index performs jobs, one after the other, until the input ends or a job fails. It accepts each job, and sends a
// report at its end. The error is about the connection to the server. Other errors are in the report.
func Index(o IndexOptions) error {
	limitMemory(o.Memory)
	log.SetFlags(0)
	in, out := bufio.NewReaderSize(o.In, 256<<10), bufio.NewWriterSize(o.Out, 64<<10)
	if err := errors.Join(ipc.WriteHello(out, o.Build), out.Flush()); err != nil {
		return err
	}
	var tags *symbols
	defer func() { tags.close() }()
	for jobs := 0; ; jobs++ {
		var request workerv1.IndexRequest
		err := ipc.Read(in, &request)
		if err == io.EOF && jobs > 0 {
			return nil
		}
		if err != nil {
			return err
		}
		job := request.Job
		if job == nil {
			return errors.New("index worker: the request has no job")
		}
		if err := errors.Join(ipc.Write(out, &workerv1.IndexResponse{Accepted: true}), out.Flush()); err != nil {
			return err
		}
		if job.Inspect {
			return inspect(job, out)
		}
		tags = tags.forJob(job.Ctags)
		report := &workerv1.Report{}
		switch err := runJob(job, in, tags, report); {
		case errors.Is(err, errInput):
			return err
		case err != nil:
			report.Error = err.Error()
			report.Full = errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || errors.Is(err, unix.EROFS) ||
				errors.Is(err, unix.EACCES)
		}
		if err := ipc.Write(out, &workerv1.IndexResponse{Report: report}); err != nil {
			return err
		}
		// A failed job may have left unread input.
		if err := out.Flush(); err != nil || report.Error != "" || report.Rebuild {
			return err
		}
	}
}

// errInput reports an incomplete job.
var errInput = errors.New("incomplete job")

// buildOptions returns zoekt's options for a job.
func buildOptions(job *workerv1.Job) build.Options {
	o := build.Options{
		IndexDir: job.Dir, SizeMax: int(job.MaxFile), ShardMax: int(job.ShardSize), Parallelism: 1, IsDelta: job.Delta,
		CTagsPath: job.Ctags, DisableCTags: job.Ctags == "",
		RepositoryDescription: zoekt.Repository{ID: job.Id, Name: job.Repository},
	}
	for _, b := range job.Branches {
		o.RepositoryDescription.Branches = append(o.RepositoryDescription.Branches,
			zoekt.RepositoryBranch{Name: b.Name, Version: b.Commit})
	}
	o.SetDefaults()
	return o
}

// extendable reports whether the shards of a repository can be added to.
func extendable(o *build.Options) bool {
	repository, metadata, ok, err := o.FindRepositoryMetadata()
	return err == nil && ok && repository.IndexOptions == o.GetHash() &&
		repository.Name == o.RepositoryDescription.Name &&
		metadata.IndexFormatVersion == zoekt.IndexFormatVersion &&
		metadata.IndexFeatureVersion == zoekt.FeatureVersion &&
		build.BranchNamesEqual(repository.Branches, o.RepositoryDescription.Branches)
}

// runJob builds shards from a job's messages. The index does not change before the job is complete.
func runJob(job *workerv1.Job, in *bufio.Reader, tags *symbols, report *workerv1.Report) error {
	o := buildOptions(job)
	if job.Delta && !extendable(&o) {
		report.Rebuild = true
		return nil
	}
	b, err := build.NewBuilder(o)
	if err != nil {
		return err
	}
	var checker zoekt.DocChecker
	for {
		var request workerv1.IndexRequest
		if err := ipc.Read(in, &request); err != nil {
			return errors.Join(errInput, err)
		}
		switch {
		case request.Document != nil:
			d := request.Document
			doc := document(job, d)
			if err := checker.Check(doc.Content, o.TrigramMax, false); doc.SkipReason == "" &&
				len(doc.Content) >= leastContent && err != nil {
				doc.SkipReason, doc.Content = err.Error(), nil
				doc.Language = "binary" // the same as in zoekt
			}
			tags.add(&doc)
			if err := b.Add(doc); err != nil {
				return err
			}
			report.Documents++
			if doc.SkipReason != "" {
				report.NamesOnly++
			}
			report.Bytes += int64(len(d.Content))
		case len(request.ChangedPath) > 0:
			b.MarkFileAsChangedOrRemoved(string(request.ChangedPath))
		case request.Finish:
			if err := b.Finish(); err != nil {
				return err
			}
			shards := o.FindAllShards()
			for _, s := range shards {
				report.Shards = append(report.Shards, filepath.Base(s))
			}
			if job.Delta || job.First { // the old shards are not replaced
				return nil
			}
			// A worker that loaded a new shard while the old one was still there must load it again.
			now := time.Now()
			for _, s := range shards {
				if err := os.Chtimes(s, now, now); err != nil {
					return err
				}
			}
			return nil
		default:
			return errors.Join(errInput, errors.New("unknown message"))
		}
	}
}

// leastContent is the minimum size in bytes of a file that zoekt searches. Shorter files hardly ever matter.
const leastContent = 3

func document(job *workerv1.Job, d *workerv1.Document) zoekt.Document {
	to := zoekt.Document{Name: string(d.Path), Content: d.Content}
	for i, b := range job.Branches {
		if d.Branches&(1<<i) != 0 {
			to.Branches = append(to.Branches, b.Name)
		}
	}
	if d.Size > int64(len(d.Content)) {
		to.SkipReason = fmt.Sprintf("document size %d larger than limit %d", d.Size, job.MaxFile)
	}
	return to
}

// inspect reports every shard in the directory.
func inspect(job *workerv1.Job, out *bufio.Writer) error {
	files, err := filepath.Glob(filepath.Join(escapeGlob(job.Dir), "*.zoekt"))
	if err != nil {
		return err
	}
	report := new(workerv1.Report)
	for _, f := range files {
		if len(job.Blobs) > 0 && !strings.HasPrefix(filepath.Base(f), job.Repository+"_v") {
			continue
		}
		s := inspectShard(f)
		if len(job.Blobs) > 0 {
			if s.HasBlob, err = hasBlob(f, job.Blobs); err != nil {
				report.Error = err.Error()
			}
		}
		if err := ipc.Write(out, &workerv1.IndexResponse{Shard: s}); err != nil {
			return err
		}
	}
	if err := ipc.Write(out, &workerv1.IndexResponse{Report: report}); err != nil {
		return err
	}
	return out.Flush()
}

// inspectShard examines one shard. A shard that makes zoekt panic is broken too.
func inspectShard(file string) (s *workerv1.Shard) {
	s = new(workerv1.Shard)
	defer func() {
		if p := recover(); p != nil {
			s.Error = fmt.Sprint("unreadable: ", p)
		}
	}()
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	s.File = filepath.Base(file)
	repositories, metadata, err := zoekt.ReadMetadataPath(file)
	switch {
	case err != nil:
		s.Error = err.Error()
		return s
	case len(repositories) != 1:
		s.Error = fmt.Sprintf("shard of %d repositories", len(repositories))
		return s
	case metadata.IndexFormatVersion != zoekt.IndexFormatVersion ||
		metadata.IndexFeatureVersion != zoekt.FeatureVersion:
		s.Error = "written by another version"
	}
	s.Id, s.Repository, s.Symbols, s.Build = repositories[0].ID, repositories[0].Name, repositories[0].HasSymbols,
		metadata.ID
	for _, b := range repositories[0].Branches {
		s.Branches = append(s.Branches, &workerv1.Branch{Name: b.Name, Commit: b.Version})
	}
	return s
}

// hasBlob reports whether a shard has the content of one of some blobs.
func hasBlob(file string, blobs []string) (found bool, err error) {
	fd, err := unix.Open(file, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err == unix.ENOENT {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	// Without its name, zoekt does not find the file beside it that hides documents of older commits.
	index, err := zoekt.NewIndexFile(os.NewFile(uintptr(fd), ""))
	if err != nil {
		return false, err
	}
	searcher, err := zoekt.NewSearcher(index)
	if err != nil {
		return false, err
	}
	defer searcher.Close()
	all, err := searcher.Search(context.Background(), &zoektquery.Const{Value: true}, &zoekt.SearchOptions{Whole: true})
	if err != nil {
		return false, err
	}
	for _, m := range all.Files {
		for _, h := range []hash.Hash{sha1.New(), sha256.New()} {
			fmt.Fprintf(h, "blob %d\x00", len(m.Content))
			h.Write(m.Content)
			found = found || slices.Contains(blobs, hex.EncodeToString(h.Sum(nil)))
		}
	}
	return found, nil
}

// escapeGlob returns the pattern that matches only a path.
func escapeGlob(path string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}
