package app

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/schedule/balance"
)

// process starts this program as something else, and gives what it reads and says. It ends with the test.
func process(t *testing.T, what string, env ...string) (cmd *exec.Cmd, in io.WriteCloser, out *bufio.Reader) {
	t.Helper()
	cmd = exec.Command(os.Args[0])
	cmd.Env = append(append(os.Environ(), asProcess+"="+what, "GORACE=atexit_sleep_ms=0"), env...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	from, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd, in, bufio.NewReader(from)
}

// crowdSize returns the number of clients in tests of many clients.
func crowdSize() int {
	if testing.Short() {
		return 2_000
	}
	return 10_000
}

// crowd connects clients to a server and sends one request on each connection. Its argument is their number and the
// server's address. The clients disconnect after a line on standard input, every other one with a reset.
func crowd(arg string) int {
	number, address, _ := strings.Cut(arg, " ")
	size, err := strconv.Atoi(number)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	conns := make([]net.Conn, size)
	var connecting sync.WaitGroup
	for part := range 50 {
		connecting.Go(func() {
			for i := part; i < len(conns); i += 50 {
				c, err := net.Dial("tcp", address)
				if err == nil {
					_, err = fmt.Fprintf(c, "POST /crowd HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n%s",
						strings.Repeat("x", 1000))
				}
				if err != nil {
					fmt.Fprintln(os.Stderr, err)
					os.Exit(1)
				}
				conns[i] = c
			}
		})
	}
	connecting.Wait()
	fmt.Println("asked")
	_, _ = fmt.Scanln()
	for i, c := range conns {
		if i%2 == 0 {
			_ = c.(*net.TCPConn).SetLinger(0)
		}
		c.Close()
	}
	fmt.Println("left")
	_, _ = fmt.Scanln()
	return 0
}

// TestManySocketsLeave connects many clients, more than the queue has places for. Their memory is bounded while they
// wait, and nothing is left after they disconnect.
func TestManySocketsLeave(t *testing.T) { // not in parallel: it counts memory and goroutines
	size := crowdSize()
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil || files.Cur < uint64(size)+1000 {
		t.Skipf("*** This process may have %d files open: %d clients are NOT tested. ***", files.Cur, size)
	}
	places := size * 9 / 10
	const each = 96 << 10 // bytes of memory
	hold := make(chan bool)
	w := serveRaw(t, func(_ int, c net.Conn, in *bufio.Reader) {
		for r := request(in); r != ""; r = request(in) {
			if strings.HasPrefix(r, "GET /hold") {
				<-hold
			}
			_, _ = io.WriteString(c, ok("done"))
		}
	})
	o := Options{Workers: one(w.address), HeaderTimeout: time.Hour}
	o.Routing.Queue = balance.Limits{Queue: places}
	f := newFront(t, o)
	first := make(chan int)
	go func() {
		status, _, _, _ := f.get("/hold")
		first <- status
	}()
	wait(t, "the worker is busy", func() bool { return f.Workers()[0].InFlight == 1 })
	memory := func() int {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int(m.HeapAlloc + m.StackInuse)
	}
	goroutines, before := runtime.NumGoroutine(), memory()

	_, in, out := process(t, fmt.Sprintf("crowd %d %s", size, f.address))
	says := func(want string) {
		t.Helper()
		if line, err := out.ReadString('\n'); err != nil || line != want+"\n" {
			t.Fatalf("output of the clients = %q, %v, want %q", line, err, want)
		}
	}
	says("asked")
	scheduler := f.table.Load().pools[0].scheduler
	refused := func(why string) int { return int(testutil.ToFloat64(f.Metrics.refused.WithLabelValues("app", why))) }
	wait(t, "all that may wait, and the others are refused",
		func() bool { return scheduler.Queued() == places && refused("full") == size-places })
	if took := memory() - before; took > size*each {
		t.Errorf("memory of %d clients = %d bytes, want at most %d", size, took, size*each)
	} else {
		t.Logf("%d clients take %d KiB each", size, took/size>>10)
	}
	_, _ = fmt.Fprintln(in)
	says("left")
	wait(t, "nobody waits", func() bool { return scheduler.Queued() == 0 && refused("left") == places })
	wait(t, "their goroutines have ended", func() bool { return runtime.NumGoroutine() <= goroutines+5 })
	if n, m := f.Workers()[0].InFlight, f.memory.used.Load(); n != 1 || m != 0 {
		t.Errorf("requests at the worker and bytes of memory = %d, %d, want 1, 0", n, m)
	}
	hold <- true
	if status := <-first; status != 200 {
		t.Errorf("status of the first request = %d, want 200", status)
	}
	if status, _, body, err := f.get("/"); err != nil || status != 200 || body != "done" {
		t.Errorf("next request = %d %q, %v, want 200 \"done\"", status, body, err)
	}
}
