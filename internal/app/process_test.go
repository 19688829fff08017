package app

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/balance"
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

const crowdSize = 10_000

// crowd is so many clients of a server, each with a connection on which it asks once. They leave when they are told to,
// every other one with a reset.
func crowd(address string) int {
	conns := make([]net.Conn, crowdSize)
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

// Ten thousand clients on sockets wait, as many as may, and go: what they cost while they wait is bounded, and nothing
// of them is left.
func TestTenThousandSocketsLeave(t *testing.T) { // not in parallel: it counts memory and goroutines
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil || files.Cur < crowdSize+1000 {
		t.Skipf("*** This process may have %d files open: 10,000 clients are NOT tested. ***", files.Cur)
	}
	const places, each = crowdSize - 1000, 96 << 10 // of memory
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

	_, in, out := process(t, "crowd "+f.address)
	says := func(want string) {
		t.Helper()
		if line, err := out.ReadString('\n'); err != nil || line != want+"\n" {
			t.Fatalf("the clients say %q, %v", line, err)
		}
	}
	says("asked")
	scheduler := f.table.Load().pools[0].scheduler
	refused := func(why string) int { return int(testutil.ToFloat64(f.Metrics.refused.WithLabelValues("app", why))) }
	wait(t, "all that may wait, and the others are refused",
		func() bool { return scheduler.Queued() == places && refused("full") == crowdSize-places })
	if took := memory() - before; took > crowdSize*each {
		t.Errorf("%d clients take %d MiB", crowdSize, took>>20)
	} else {
		t.Logf("%d clients take %d KiB each", crowdSize, took/crowdSize>>10)
	}
	_, _ = fmt.Fprintln(in)
	says("left")
	wait(t, "nobody waits", func() bool { return scheduler.Queued() == 0 && refused("left") == places })
	wait(t, "their goroutines have ended", func() bool { return runtime.NumGoroutine() <= goroutines+5 })
	if n, m, d := f.Workers()[0].InFlight, f.memory.used.Load(), f.disk.used.Load(); n != 1 || m != 0 || d != 0 {
		t.Errorf("%d requests at the worker, %d bytes of memory, %d of disk", n, m, d)
	}
	hold <- true
	if status := <-first; status != 200 {
		t.Errorf("what the worker was at: %d", status)
	}
	if status, _, body, err := f.get("/"); err != nil || status != 200 || body != "done" {
		t.Errorf("the next one: %d %q, %v", status, body, err)
	}
}
