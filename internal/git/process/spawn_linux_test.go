package process

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The cost of starting a process by the heap of the process that starts it, in two ways. "spawn" is that of Runner:
// the child borrows the parent's memory until it runs git (CLONE_VM, CLONE_VFORK). "fork" is plain fork(2), as Go did
// before version 1.9: the child first gets a copy of the page tables.

const (
	spawnRate     = 20               // single starts per second
	spawnSingle   = 100              // of them for each heap
	spawnTogether = 200              // starts at the same moment
	spawnPatience = 20 * time.Second // of all starts of a row
	neighbourRate = 200              // requests per second beside the starts
	// pagesOfTables is the number of bytes of a process for each byte of its page tables.
	pagesOfTables = 512
)

// spawnRow is the result for one method, heap and number of goroutines. The names of the fields are those of
// `make bench-spawn`.
type spawnRow struct {
	Method       string  `json:"method"`
	HeapBytes    int64   `json:"heap_bytes"`
	Goroutines   int     `json:"goroutines"` // that start children at once; 1: single starts
	P50          float64 `json:"p50_us"`
	P99          float64 `json:"p99_us"`
	Max          float64 `json:"max_us"`
	NeighbourP99 float64 `json:"neighbour_p99_us"`
	Starts       int     `json:"starts"`
	GaveUp       int     `json:"gave_up"` // of starts; their waiting time counts as their latency
	Errors       int     `json:"errors"`
}

// spawnRatio compares the largest heap with the smallest.
type spawnRatio struct {
	Method     string  `json:"method"`
	Goroutines int     `json:"goroutines"`
	HeapBytes  int64   `json:"heap_bytes"`
	P99        float64 `json:"p99"`
}

// startFunc starts a child and returns when it runs git. wait waits for the child's end.
type startFunc func(ctx context.Context) (wait func() error, err error)

// BenchmarkSpawn starts `git version` from processes with heaps of PACKHORSE_HEAPS GiB (0,1,4), and writes a report to
// the file in PACKHORSE_REPORT, if that is set (`make bench-spawn`). The heap is touched, and in pages of the usual size,
// like a heap that grew slowly. Meanwhile another request of this process writes to parts of the heap.
func BenchmarkSpawn(b *testing.B) {
	heaps := []int64{0}
	for text := range strings.SplitSeq(os.Getenv("PACKHORSE_HEAPS"), ",") {
		if n, err := strconv.ParseInt(text, 10, 32); err == nil && n > 0 {
			heaps = append(heaps, n<<30)
		}
	}
	if len(heaps) == 1 {
		heaps = []int64{0, 1 << 30, 4 << 30}
	}
	slices.Sort(heaps)
	runner, err := New(Options{Git: "git", Classes: map[Class]Limits{"bench": {Slots: spawnTogether}}})
	if err != nil {
		b.Fatal(err)
	}
	defer runner.Close(context.Background())
	report := struct {
		Runs   int          `json:"runs"`
		Rows   []spawnRow   `json:"rows"`
		Ratios []spawnRatio `json:"ratios"`
	}{Runs: 1}
	var heap [][]byte
	for _, size := range heaps {
		if heap = grow(heap, size); heap == nil {
			b.Fatalf("a heap of %d GiB does not fit into free memory: set PACKHORSE_HEAPS", size>>30)
		}
		for _, method := range []struct {
			name  string
			start startFunc
		}{{"spawn", spawnOf(runner)}, {"fork", forkOf(b, size)}} {
			if method.start == nil {
				continue
			}
			for _, goroutines := range []int{1, spawnTogether} {
				b.Run(fmt.Sprintf("%s/GiB=%d/goroutines=%d", method.name, size>>30, goroutines), func(b *testing.B) {
					row := spawnRow{Method: method.name, HeapBytes: size, Goroutines: goroutines}
					for b.Loop() {
						row.measure(b, method.start, heap)
					}
					b.ReportMetric(row.P50, "p50-us")
					b.ReportMetric(row.P99, "p99-us")
					b.ReportMetric(row.NeighbourP99, "neighbour-p99-us")
					report.Rows = append(report.Rows, row)
				})
			}
		}
	}
	for _, row := range report.Rows {
		for _, least := range report.Rows {
			if row.HeapBytes == heaps[len(heaps)-1] && least.HeapBytes == 0 && row.Method == least.Method &&
				row.Goroutines == least.Goroutines {
				report.Ratios = append(report.Ratios, spawnRatio{row.Method, row.Goroutines, row.HeapBytes, row.P99 / least.P99})
			}
		}
	}
	if file := os.Getenv("PACKHORSE_REPORT"); file != "" {
		text, err := json.MarshalIndent(report, "", "  ")
		if err == nil {
			err = os.WriteFile(file, append(text, '\n'), 0o666)
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}

// measure starts children one by one at a fixed rate, or all at once.
func (r *spawnRow) measure(b *testing.B, start startFunc, heap [][]byte) {
	wait, err := start(b.Context()) // the first start finds cold caches
	if err == nil {
		err = wait()
	}
	if err != nil {
		b.Fatal(err)
	}
	runtime.GC()
	var mu sync.Mutex
	var took []time.Duration
	var running, waiting sync.WaitGroup
	ctx, cancel := context.WithTimeout(b.Context(), spawnPatience)
	defer cancel()
	one := func(asked time.Time) {
		wait, err := start(ctx)
		mu.Lock()
		defer mu.Unlock()
		took = append(took, time.Since(asked))
		switch {
		case ctx.Err() != nil && err != nil:
			r.GaveUp++
			return
		case err != nil:
			r.Errors++
			return
		}
		waiting.Go(func() {
			if wait() != nil {
				b.Error("git version failed")
			}
		})
	}
	ended := make(chan struct{})
	neighbour := make(chan []time.Duration, 1)
	go func() { neighbour <- besides(ended, heap) }()
	began := time.Now()
	starts := r.Goroutines
	if starts == 1 {
		starts = spawnSingle
	}
	for n := range starts {
		if r.Goroutines == 1 {
			time.Sleep(time.Until(began.Add(time.Duration(n) * time.Second / spawnRate)))
			began := time.Now()
			running.Go(func() { one(began) })
		} else {
			running.Go(func() { one(began) })
		}
	}
	running.Wait()
	close(ended)
	waiting.Wait()
	rank := func(list []time.Duration, percent int) float64 {
		slices.Sort(list)
		return float64(list[(len(list)*percent+99)/100-1].Microseconds())
	}
	r.Starts = len(took) - r.GaveUp - r.Errors
	r.P50, r.P99, r.Max = rank(took, 50), rank(took, 99), rank(took, 100)
	r.NeighbourP99 = rank(<-neighbour, 99)
}

// besides sends requests to a server of this process until ended is closed, and returns their latencies from the times
// when they were due.
func besides(ended <-chan struct{}, heap [][]byte) (took []time.Duration) {
	var touching sync.Mutex
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		touching.Lock()
		defer touching.Unlock()
		for range 4 {
			if len(heap) > 0 {
				piece := heap[rand.IntN(len(heap))]
				piece[rand.IntN(len(piece))]++
			}
		}
	}))
	defer server.Close()
	var mu sync.Mutex
	var requests sync.WaitGroup
	began := time.Now()
	for n := 0; ; n++ {
		due := began.Add(time.Duration(n) * time.Second / neighbourRate)
		time.Sleep(time.Until(due))
		requests.Go(func() {
			response, err := server.Client().Get(server.URL)
			if err != nil {
				return
			}
			response.Body.Close()
			mu.Lock()
			took = append(took, time.Since(due))
			mu.Unlock()
		})
		select {
		case <-ended:
			requests.Wait()
			return took
		default:
		}
	}
}

// grow makes the heap as large as size, and writes to each of its pages. It returns nil if less than 1 GiB of memory
// would remain free.
func grow(heap [][]byte, size int64) [][]byte {
	const piece = 64 << 20
	if heap == nil {
		heap = [][]byte{}
	}
	for int64(len(heap))*piece < size {
		if free() < piece+1<<30 {
			return nil
		}
		b := make([]byte, piece)
		page := os.Getpagesize()
		skip := -int(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) & (page - 1)
		// With huge pages, page tables are 512 times smaller, and their number is not predictable.
		unix.Madvise(b[skip:skip+(len(b)-skip)&^(page-1)], unix.MADV_NOHUGEPAGE) //nolint:errcheck // a kernel without them
		for i := 0; i < len(b); i += page {
			b[i] = 1
		}
		heap = append(heap, b)
	}
	return heap
}

// free returns the free memory of the machine and of the control group.
func free() int64 {
	text, _ := os.ReadFile("/proc/meminfo")
	_, rest, _ := strings.Cut(string(text), "MemAvailable:")
	kib, _ := strconv.ParseInt(strings.Fields(rest + " 0")[0], 10, 64)
	least := kib << 10
	number := func(name string) (int64, error) {
		text, err := os.ReadFile("/sys/fs/cgroup/" + name)
		if err != nil {
			return 0, err
		}
		return strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	}
	limit, err := number("memory.max")
	used, other := number("memory.current")
	if errors.Join(err, other) == nil {
		least = min(least, limit-used)
	}
	return least
}

// spawnOf starts children as servers do.
func spawnOf(r *Runner) startFunc {
	return func(ctx context.Context) (func() error, error) {
		p, err := r.Start(ctx, Command{Class: "bench", Subcommand: "version", Args: []string{"version"}})
		if err != nil {
			return nil, err
		}
		return func() error {
			_, copied := io.Copy(io.Discard, p.Stdout())
			_, err := p.Wait()
			return errors.Join(copied, err)
		}, nil
	}
}

// forkOf starts children with plain fork(2). It holds the lock that also protects the creation of descriptors, and a
// pipe reports when the child runs the program. It returns nil where this is not supported.
func forkOf(b *testing.B, heap int64) startFunc {
	if runtime.GOARCH == "s390x" { // its clone(2) has another order of arguments
		return nil
	}
	path, err := exec.LookPath("git")
	if err != nil {
		b.Fatal(err)
	}
	c := forkArgs{}
	if c.program, err = syscall.BytePtrFromString(path); err != nil {
		b.Fatal(err)
	}
	if c.argv, err = syscall.SlicePtrFromStrings([]string{"git", "version"}); err != nil {
		b.Fatal(err)
	}
	if c.envp, err = syscall.SlicePtrFromStrings([]string{"PATH=" + os.Getenv("PATH")}); err != nil {
		b.Fatal(err)
	}
	if c.null, err = os.OpenFile(os.DevNull, os.O_RDWR, 0); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { c.null.Close() })
	// Each child that has not run the program yet has a copy of the page tables.
	copies := make(chan struct{}, min(spawnTogether, max(1, free()/4/(heap/pagesOfTables+1))))
	return func(ctx context.Context) (func() error, error) {
		copies <- struct{}{}
		defer func() { <-copies }()
		var p [2]int
		syscall.ForkLock.Lock()
		err := ctx.Err()
		if err == nil {
			err = unix.Pipe2(p[:], unix.O_CLOEXEC)
		}
		if err != nil {
			syscall.ForkLock.Unlock()
			return nil, err
		}
		pid, errno := c.fork()
		syscall.ForkLock.Unlock()
		unix.Close(p[1])
		defer unix.Close(p[0])
		if errno != 0 {
			return nil, errno
		}
		for { // the pipe is closed when the child runs git, or ends
			if _, err := unix.Read(p[0], make([]byte, 1)); err != unix.EINTR {
				break
			}
		}
		return func() error {
			process, err := os.FindProcess(pid)
			if err != nil {
				return err
			}
			state, err := process.Wait()
			if err == nil && !state.Success() {
				err = errors.New(state.String())
			}
			return err
		}, nil
	}
}

// forkArgs has the arguments of fork, which may not allocate.
type forkArgs struct {
	program    *byte
	argv, envp []*byte
	null       *os.File
}

// fork makes the child, which runs the program. The child has one thread, and the Go runtime is in an arbitrary state
// there. So the child makes only system calls.
//
//go:noinline
//go:norace
//go:nocheckptr
func (c *forkArgs) fork() (pid int, errno syscall.Errno) {
	var (
		null     = c.null.Fd()
		program  = uintptr(unsafe.Pointer(c.program))
		argv     = uintptr(unsafe.Pointer(unsafe.SliceData(c.argv)))
		envp     = uintptr(unsafe.Pointer(unsafe.SliceData(c.envp)))
		all, old [2]uint64 // signal sets, of at least the kernel's size (rt_sigprocmask(2))
		size     = unsafe.Sizeof(all[0])
		got      uintptr
	)
	all[0] = ^uint64(0)
	runtime.LockOSThread() // its signals are blocked, so that the runtime does not interrupt the child
	unix.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&all)),
		uintptr(unsafe.Pointer(&old)), size, 0, 0)
	got, _, errno = syscall.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if got == 0 && errno == 0 {
		for fd := uintptr(0); fd <= 2; fd++ {
			syscall.RawSyscall(unix.SYS_DUP3, null, fd, 0)
		}
		unix.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&old)), 0, size, 0, 0)
		syscall.RawSyscall(unix.SYS_EXECVE, program, argv, envp)
		for {
			syscall.RawSyscall(unix.SYS_EXIT_GROUP, 127, 0, 0)
		}
	}
	unix.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&old)), 0, size, 0, 0)
	runtime.UnlockOSThread()
	runtime.KeepAlive(c)
	return int(got), errno
}
