package e2e

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// releasedFile returns the file in the directory of a release (PACKHORSE_TEST_DIST) that matches the pattern. It skips
// the test without a release.
func releasedFile(t *testing.T, pattern string) string {
	t.Helper()
	dist := os.Getenv("PACKHORSE_TEST_DIST")
	if dist == "" {
		t.Skip("*** RELEASES ARE NOT TESTED: make test-release names one in PACKHORSE_TEST_DIST ***")
	}
	found, err := filepath.Glob(filepath.Join(dist, pattern))
	if err != nil || len(found) != 1 {
		t.Fatalf("files %s of the release in %s = %q (error %v), want one", pattern, dist, found, err)
	}
	return found[0]
}

// needPrograms skips the test unless it runs as root and the programs are installed.
func needPrograms(t *testing.T, names ...string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("*** PACKAGES ARE NOT TESTED: only root can make namespaces and install packages ***")
	}
	for _, name := range names {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("*** NOT TESTED: %v ***", err)
		}
	}
}

// makeDebian makes a root of the Debian that this machine has, with systemd and git, from Debian's packages.
func makeDebian(t *testing.T) (root string) {
	t.Helper()
	release, err := exec.Command("sh", "-c", ". /etc/os-release && echo $VERSION_CODENAME").Output()
	if err != nil {
		t.Fatal(err)
	}
	root = filepath.Join(t.TempDir(), "debian")
	out, err := exec.Command("mmdebstrap", "--quiet", "--variant=minbase", "--include=systemd,dbus,git,ca-certificates",
		"--dpkgopt=force-unsafe-io", "--dpkgopt=path-exclude=/usr/share/doc/*", "--dpkgopt=path-exclude=/usr/share/locale/*",
		"--aptopt=Acquire::Languages none", strings.TrimSpace(string(release)), root).CombinedOutput()
	if err != nil {
		t.Fatalf("mmdebstrap: %v\n%s", err, out)
	}
	return root
}

// bootScript starts systemd in its own namespaces on a copy of $ROOT, which is in memory.
const bootScript = `
mount --make-rprivate /
ip link set lo up
hostname packhorse-test
mount -t overlay overlay -o "lowerdir=$ROOT,upperdir=$DIR/upper,workdir=$DIR/work" "$DIR/root"
cd "$DIR/root"
mount -t proc proc proc
mount -t sysfs sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs dev
for file in null zero full random urandom tty; do touch dev/$file; mount --bind /dev/$file dev/$file; done
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
mount -t tmpfs tmpfs run
mount -t tmpfs tmpfs tmp
mkdir run/host
pivot_root . run/host
umount -l run/host
exec env -i container=packhorse-test PATH=/usr/sbin:/usr/bin:/sbin:/bin /usr/lib/systemd/systemd --log-target=console </dev/null
`

// A machine is a Debian with systemd as its first process, and without a network.
type machine struct {
	t   *testing.T
	pid string // of systemd
}

// boot starts a machine from a root, with files in /packages. It ends with the test.
func boot(t *testing.T, root string, files ...string) *machine {
	t.Helper()
	m, dir := &machine{t: t}, t.TempDir()
	for _, name := range []string{"upper/packages", "work", "root"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, "upper/packages", filepath.Base(file)), text, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	mount, err := exec.Command("findmnt", "--noheadings", "--first-only", "--types=cgroup2", "--output=TARGET").Output()
	if err != nil {
		t.Skip("*** PACKAGES ARE NOT TESTED: systemd needs control groups of version 2 ***")
	}
	group, err := os.MkdirTemp(strings.TrimSpace(string(mount)), "packhorse-test-")
	if err != nil {
		t.Skipf("*** PACKAGES ARE NOT TESTED: systemd needs a control group: %v ***", err)
	}
	fd, err := unix.Open(group, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	var console bytes.Buffer
	systemd := exec.Command("unshare", "--cgroup", "sh", "-euc", bootScript)
	systemd.Env = append(os.Environ(), "ROOT="+root, "DIR="+dir)
	systemd.Stdout, systemd.Stderr = &console, &console
	runtime.LockOSThread() // whose end ends the machine, also when the process of the test is killed
	systemd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: fd, Setsid: true, Pdeathsig: syscall.SIGKILL,
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS}
	if err := systemd.Start(); err != nil {
		t.Fatal(err)
	}
	m.pid = strconv.Itoa(systemd.Process.Pid)
	t.Cleanup(func() {
		systemd.Process.Kill() // the kernel kills all processes of the machine
		systemd.Wait()
		exec.Command("find", group, "-depth", "-type", "d", "-exec", "rmdir", "{}", ";").Run()
		if t.Failed() {
			t.Logf("console of the machine:\n%s", console.Bytes())
		}
	})
	var state string
	if !gittest.Eventually(func() bool {
		name, _ := os.ReadFile("/proc/" + m.pid + "/comm")
		if string(name) == "systemd\n" { // and no longer sh, which is in other namespaces
			state, _ = m.try("systemctl is-system-running --wait")
		}
		return state == "running\n" || state == "degraded\n"
	}) || state != "running\n" {
		t.Fatalf("state of the machine = %q, want running", state)
	}
	return m
}

// prelude begins each script. fails requires that a command fails.
const prelude = `cd /root
fails() { if "$@"; then echo "succeeds: $*"; exit 1; fi; }
`

// try runs a shell script as root of the machine, and returns its output.
func (m *machine) try(script string) (string, error) {
	out, err := exec.Command("nsenter", "--all", "--target="+m.pid, "env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME=/root", "LANG=C.UTF-8", "DEBIAN_FRONTEND=noninteractive", "sh", "-euc", prelude+script).CombinedOutput()
	return string(out), err
}

// run is try for a script that succeeds, and whose output contains texts.
func (m *machine) run(script string, texts ...string) string {
	m.t.Helper()
	out, err := m.try(script)
	if err != nil {
		log, _ := m.try("journalctl --no-pager --lines=50 --output=cat")
		m.t.Fatalf("%v\n%s\n%s\njournal:\n%s", err, script, out, log)
	}
	for _, text := range texts {
		if !strings.Contains(out, text) {
			m.t.Errorf("output of\n%s\nhas no %q, want it:\n%s", script, text, out)
		}
	}
	return out
}
