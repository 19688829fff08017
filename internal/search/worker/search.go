// Package worker runs in the processes that index and search, and is the only user of zoekt. Zoekt maps its files, so a
// truncated file kills its process. It also does not limit its memory and time. So it runs in separate processes with
// limits, which may die.
package worker

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"io"
	"log"
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/RoaringBitmap/roaring"
	"github.com/sourcegraph/zoekt"
	zoektquery "github.com/sourcegraph/zoekt/query"
	"github.com/sourcegraph/zoekt/shards"
	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/proto/workerv1"
	"github.com/packhorse-git/packhorse/internal/search/ipc"
	"github.com/packhorse-git/packhorse/internal/search/query"
	"github.com/packhorse-git/packhorse/internal/search/schema"
)

const (
	// batchSize is the minimum size in bytes of a batch of results, except for the last one.
	batchSize = 64 << 10
	// answerBuffer is the size of the write buffer: a short response is one write.
	answerBuffer = 32 << 10
	// manyMore multiplies the limit of matches for a second search, if the first one found too few files.
	manyMore = 1000
	// flushAfter is the time in which results are collected and sorted before the first ones are sent.
	flushAfter = 500 * time.Millisecond
)

// SearchOptions configures a search worker.
type SearchOptions struct {
	Build   ipc.Build
	Dir     string
	Memory  int64    // bytes of heap; 0: no limit
	Control *os.File // Unix socket of the server, which sends other sockets over it
}

// Search answers requests until the control socket ends. When all shards are loaded it sends a byte.
func Search(o SearchOptions) error {
	limitMemory(o.Memory)
	defer runtime.KeepAlive(unused(o.Memory))
	log.SetFlags(0)
	control, err := net.FileConn(o.Control)
	if err != nil {
		return fault.Wrap(fault.Invalid, "the standard input of a search worker has to be a socket of the server",
			err)
	}
	o.Control.Close()
	unixControl, ok := control.(*net.UnixConn)
	if !ok {
		return fault.New(fault.Invalid, "the standard input of a search worker has to be a socket of the server")
	}
	if err := ipc.WriteHello(control, o.Build); err != nil {
		return nil // the server has gone
	}
	streamer, err := shards.NewDirectorySearcher(o.Dir)
	if err != nil {
		return fault.Wrap(fault.Internal, "cannot open the index", err)
	}
	if _, err := control.Write([]byte{1}); err != nil {
		return nil // the server has gone
	}
	s := &searcher{Streamer: streamer, mostWaiting: cmp.Or(o.Memory/8, 256<<20)}
	for {
		c, err := receive(unixControl)
		if err != nil {
			return nil
		}
		go s.serve(c)
	}
}

// limitMemory sets the memory limit of the garbage collector, and one that ends the process.
func limitMemory(n int64) {
	if n <= 0 {
		return
	}
	debug.SetMemoryLimit(n)
	hard := uint64(n + n/2 + 64<<20)
	unix.Setrlimit(unix.RLIMIT_DATA, &unix.Rlimit{Cur: hard, Max: hard})
}

// unused returns memory that is never touched, so the kernel does not allocate it. With it on the heap the garbage
// collector runs less often than after every few megabytes, which searches in a small index need.
func unused(limit int64) []byte {
	const most = 64 << 20
	if limit <= 0 {
		return make([]byte, most)
	}
	return make([]byte, min(most, limit/16))
}

// receive takes a socket from the server.
func receive(control *net.UnixConn) (net.Conn, error) {
	var b [1]byte
	oob := make([]byte, unix.CmsgSpace(4))
	n, m, _, _, err := control.ReadMsgUnix(b[:], oob)
	if err == nil && n == 0 {
		err = io.EOF
	}
	if err != nil {
		return nil, err
	}
	messages, err := unix.ParseSocketControlMessage(oob[:m])
	if err != nil || len(messages) != 1 {
		return nil, errors.Join(err, errors.New("no socket in the message"))
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return nil, errors.Join(err, errors.New("no socket in the message"))
	}
	unix.CloseOnExec(fds[0])
	f := os.NewFile(uintptr(fds[0]), "search")
	defer f.Close()
	return net.FileConn(f)
}

type searcher struct {
	zoekt.Streamer
	waiting     atomic.Int64 // bytes of results in all outboxes
	mostWaiting int64        // limit of waiting
}

// asked is a request with its repositories.
type asked struct {
	*workerv1.SearchRequest
	repositories *roaring.Bitmap // nil: all
}

// serve answers the requests on one socket, one after the other, until the server closes it.
func (s *searcher) serve(c net.Conn) {
	ctx, cancel := context.WithCancel(context.Background())
	requests := bufio.NewReaderSize(c, 8<<10)
	out := newOutbox(c, &s.waiting, s.mostWaiting)
	defer out.running.Wait()
	defer c.Close()
	defer cancel()
	a := &answer{w: bufio.NewWriterSize(out, answerBuffer)}
	for {
		r, err := readRequest(requests)
		if err != nil {
			return
		}
		a.reset(r, cancel)
		began := time.Now()
		stop := cancelOnClose(requests, cancel)
		out.searching = true
		err = s.searchSafely(ctx, r, a)
		out.searching = false
		a.end.DurationUs = (time.Since(began) - a.sending).Microseconds()
		if err != nil && a.err == nil {
			a.end.Error, a.end.ErrorKind = err.Error(), uint32(fault.KindOf(err))
			if e, ok := errors.AsType[*fault.Error](err); ok {
				a.end.Error = e.Error()
			}
		}
		if err := a.finish(); err != nil {
			c.Close()
			stop()
			return
		}
		stop()
	}
}

// cancelAfter is the running time of a search after which its socket is watched for cancellation. Most searches have
// ended by then.
const cancelAfter = 5 * time.Millisecond

// cancelOnClose cancels a search if the server closes the socket. Until stop has returned, nothing else may read the
// socket. It returns with the next request, or at the end of the socket.
func cancelOnClose(r *bufio.Reader, cancel context.CancelFunc) (stop func()) {
	done := make(chan struct{})
	timer := time.AfterFunc(cancelAfter, func() {
		defer close(done)
		if _, err := r.Peek(1); err != nil {
			cancel()
		}
	})
	return func() {
		if !timer.Stop() {
			<-done
		}
	}
}

// readRequest reads the next request.
func readRequest(r *bufio.Reader) (asked, error) {
	a := asked{SearchRequest: &workerv1.SearchRequest{}}
	err := ipc.Read(r, a.SearchRequest)
	if err == nil && a.Repositories != nil {
		a.repositories = roaring.BitmapOf(ipc.Set(a.Repositories.Bits).List()...)
	}
	return a, err
}

// searchSafely turns a panic into an error: the process also runs other searches.
func (s *searcher) searchSafely(ctx context.Context, r asked, a *answer) (err error) {
	defer func() {
		if p := recover(); p != nil {
			log.Printf("panic in a search: %v\n%s", p, debug.Stack())
			err = fault.New(fault.Internal, "panic in the search: %v", p)
		}
	}()
	if r.ListShards {
		return s.loaded(ctx, r, a)
	}
	return s.search(ctx, r, a)
}

// loaded answers which repositories can be searched.
func (s *searcher) loaded(ctx context.Context, r asked, a *answer) error {
	if r.repositories == nil {
		r.repositories = roaring.New()
	}
	list, err := s.List(ctx, &zoektquery.RepoIDs{Repos: r.repositories}, nil)
	if err != nil {
		return err
	}
	for _, l := range list.Repos {
		a.end.Repositories = append(a.end.Repositories, &workerv1.FoundRepository{Id: l.Repository.ID,
			Shards: int32(l.Stats.Shards)})
	}
	return nil
}

func (s *searcher) search(ctx context.Context, r asked, a *answer) error {
	q, err := query.Parse(r.Query)
	if err != nil {
		return err
	}
	p, err := translate(q)
	if err != nil {
		return err
	}
	if r.repositories != nil {
		p.query = zoektquery.NewAnd(&zoektquery.RepoIDs{Repos: r.repositories}, p.query)
	}
	a.plan = p
	timeout := time.Duration(r.TimeoutMs) * time.Millisecond
	limit := int(r.Limit)
	enough := 100 * limit
	o := zoekt.SearchOptions{
		ChunkMatches: true, Whole: a.format == schema.GraphQL, MaxDocDisplayCount: limit + 1, MaxWallTime: timeout,
		FlushWallTime:      min(flushAfter, timeout),
		ShardMaxMatchCount: enough, TotalMaxMatchCount: enough,
	}
	find := s.StreamSearch
	if a.format == schema.API {
		find, o.FlushWallTime, a.hold = s.collect, 0, true
	}
	if p.repository { // a repository with many matches must not hide others
		o.ShardRepoMaxMatchCount, o.MaxDocDisplayCount, o.ShardMaxMatchCount, o.TotalMaxMatchCount = 1, 0,
			manyMore*enough, manyMore*enough
	}
	began := time.Now()
	a.enough = o.TotalMaxMatchCount
	err = find(ctx, p.query, &o, a)
	if a.hold && err == nil && (a.skipped && len(a.held) < limit || a.stopped() && len(a.held) == limit) {
		o.ShardMaxMatchCount, o.TotalMaxMatchCount, o.MaxWallTime = manyMore*enough, manyMore*enough,
			max(timeout-time.Since(began), time.Millisecond)
		a.held, a.skipped, a.found, a.enough = nil, false, 0, o.TotalMaxMatchCount
		err = find(ctx, p.query, &o, a)
	}
	a.render(a.held)
	a.held = nil
	if time.Since(began) >= timeout {
		a.end.TimedOut = true
	}
	return err
}

// collect searches as StreamSearch does, and sends once.
func (s *searcher) collect(ctx context.Context, q zoektquery.Q, o *zoekt.SearchOptions, sender zoekt.Sender) error {
	r, err := s.Search(ctx, q, o)
	if r != nil {
		sender.Send(r)
	}
	return err
}

// answer renders results as they come.
type answer struct {
	w      *bufio.Writer
	cancel context.CancelFunc
	format schema.Format
	limit  int
	plan   plan
	err    error // of writing

	hold    bool              // hold the results until the search has ended
	held    []zoekt.FileMatch // held results
	skipped bool              // some parts were, or may have been, skipped because of the limit
	found   int               // number of matches, as counted by zoekt
	// number of matches after which zoekt starts no further shards, without counting them
	enough           int
	file             schema.File
	elements         []byte        // unsent results
	results, matches int           // number of unsent results, and of matches in them
	sending          time.Duration // time spent in sending batches
	end              *workerv1.SearchEnd
	seen             map[uint32]bool
}

func (a *answer) reset(r asked, cancel context.CancelFunc) {
	a.cancel, a.format, a.limit = cancel, schema.Format(r.Format), int(r.Limit)
	a.elements, a.results, a.matches = a.elements[:0], 0, 0
	a.end = &workerv1.SearchEnd{}
	a.hold, a.held, a.skipped, a.found, a.enough, a.sending = false, nil, false, 0, 0, 0
	a.seen = make(map[uint32]bool)
}

// Send receives results from zoekt, one call at a time.
func (a *answer) Send(r *zoekt.SearchResult) {
	if r.Crashes > 0 {
		a.end.Crashed = true
	}
	// After its first result a repository is not searched further.
	a.found += r.MatchCount
	a.skipped = a.skipped || r.FilesSkipped > 0 && !a.plan.repository || r.ShardsSkipped > 0 || a.stopped()
	if a.hold {
		a.held = append(a.held, r.Files...)
	} else {
		a.render(r.Files)
	}
}

// stopped reports whether zoekt may have left out shards without counting them.
func (a *answer) stopped() bool { return a.found > a.enough }

// render sends results, up to the limit.
func (a *answer) render(files []zoekt.FileMatch) {
	a.end.Limited = a.end.Limited || a.skipped
	for i := range files {
		if a.err != nil {
			return
		}
		if a.plan.repository && a.seen[files[i].RepositoryID] {
			continue
		}
		if int(a.end.Results) >= a.limit {
			a.end.Limited = true
			return
		}
		a.add(&files[i])
	}
	if !a.hold { // otherwise finish follows and sends them
		a.flush()
	}
}

func (a *answer) add(m *zoekt.FileMatch) {
	if !a.seen[m.RepositoryID] {
		a.seen[m.RepositoryID] = true
		branch := ""
		if len(m.Branches) > 0 {
			branch = m.Branches[0]
		}
		a.end.Repositories = append(a.end.Repositories, &workerv1.FoundRepository{Id: m.RepositoryID,
			Commit: m.Version, Branch: branch})
	}
	convert(&a.file, m, a.plan)
	if a.results > 0 {
		a.elements = append(a.elements, ',')
	}
	a.elements = a.format.Append(a.elements, &a.file)
	matches := a.file.Matches()
	a.results++
	a.matches += matches
	a.end.Results++
	a.end.Matches += int32(matches)
	if len(a.elements) >= batchSize {
		a.flush()
	}
}

// flush sends the waiting results.
func (a *answer) flush() {
	if a.results == 0 || a.err != nil {
		return
	}
	began := time.Now()
	if a.err = ipc.Write(a.w, &workerv1.SearchResponse{Batch: a.batch()}); a.err == nil {
		a.err = a.w.Flush()
	}
	a.sending += time.Since(began)
	if a.err != nil {
		a.cancel()
	}
}

// batch returns the waiting results, or nil if no result waits. It is valid until the next result.
func (a *answer) batch() *workerv1.SearchBatch {
	if a.results == 0 {
		return nil
	}
	batch := &workerv1.SearchBatch{Results: int32(a.results), Matches: int32(a.matches), Elements: a.elements}
	a.elements, a.results, a.matches = a.elements[:0], 0, 0
	return batch
}

// finish sends the waiting results with the end.
func (a *answer) finish() error {
	if a.err != nil {
		return a.err
	}
	if err := ipc.Write(a.w, &workerv1.SearchResponse{Batch: a.batch(), End: a.end}); err != nil {
		return err
	}
	return a.w.Flush()
}
