package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// containerScript runs an image in its own namespaces, like a container engine. Its tree is a copy of $LOWER, which
// $BUILD completes. The script starts the command as the image's user, without capabilities and with a read-only root
// file system. The network is separate, so that the default ports are free.
const containerScript = `
ip link set lo up
mount -t tmpfs none "$DIR"
mkdir "$DIR/upper" "$DIR/work" "$DIR/image"
image=$DIR/image
mount -t overlay overlay -o "lowerdir=$LOWER,upperdir=$DIR/upper,workdir=$DIR/work" "$image"
mkdir -p "$image/proc" "$image/dev" "$image/tmp"
mount -t proc proc "$image/proc"
mount --rbind /dev "$image/dev"
mount -t tmpfs none "$image/tmp"
eval "$BUILD"

mount -t tmpfs -o uid=10001,gid=10001,mode=0750 none "$image$VOLUME"
mount -o remount,bind,ro "$image"
become() { # with the capabilities of chroot(1), which end when it changes the user
	exec setpriv --no-new-privs --inh-caps=-all --bounding-set=-all,+sys_chroot,+setuid,+setgid \
		chroot --userspec="$USER" --groups= "$image" env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin $ENV \
		sh -c 'cd "$0" && exec "$@"' "$WORKDIR" "$@"
}
inside() { (become "$@"); }
test "$(inside id -u)" != 0
inside grep -q '^CapEff:.0*$' /proc/self/status
if inside touch /usr/written 2>/dev/null; then echo "the root file system can be written"; exit 1; fi

# start ARGUMENT...: starts the image's program, waits until the health check succeeds, and sets pid.
start() {
	if inside $HEALTH >/dev/null 2>&1; then echo "the health check succeeds without a server"; exit 1; fi
	become $ENTRYPOINT "$@" 2>"$DIR/log" &
	pid=$!
	tries=0
	until inside $HEALTH >"$DIR/health" 2>&1; do
		tries=$((tries + 1))
		if [ $tries = 300 ] || ! kill -0 "$pid"; then cat "$DIR/log" "$DIR/health"; exit 1; fi
		sleep 0.1
	done
}
# stop ends the program as a container engine does.
stop() {
	kill "-${STOPSIGNAL#SIG}" "$pid"
	wait "$pid" || { cat "$DIR/log"; exit 1; }
}
start $CMD
test "$(stat -c %u "$image$VOLUME"/mirror)" = 10001
stop

inside git init -q --bare repos/app.git
start serve --root "$VOLUME/repos" --public-read
inside git clone -q http://127.0.0.1:8080/app /tmp/app 2>/dev/null
stop
echo "the image works"
`

// containerBuild makes the image of the Containerfile from the tree of this machine.
const containerBuild = `
mkdir "$image/tmp/packhorse"
cp "$BIN/packhorse" "$BIN/packhorse-search" ../deploy/container/install "$image/tmp/packhorse"
rm -rf "$image/var/lib/packhorse"
for file in passwd shadow group gshadow; do # without the user that an installed package has created on this machine
	if [ -f "$image/etc/$file" ]; then sed -i -e '/^packhorse:/d' -e '/^[^:]*:[^:]*:10001:/d' "$image/etc/$file"; fi
done
chroot "$image" sh -euc "$RUN"
`

// TestContainer runs the instructions of the Containerfile's last stage on the tree of this machine, then the image.
func TestContainer(t *testing.T) {
	t.Parallel()
	instructions := lastStage(t, "../Containerfile")
	list := func(text string) string { // of a command in JSON without spaces in its words
		t.Helper()
		var words []string
		if err := json.Unmarshal([]byte(text), &words); err != nil {
			t.Fatalf("Containerfile: command %s: %v", text, err)
		}
		return strings.Join(words, " ")
	}
	_, health, _ := strings.Cut(instructions["HEALTHCHECK"], "CMD ")
	runImage(t, "LOWER=/", "BUILD="+containerBuild, "BIN="+binDir, "RUN="+instructions["RUN"],
		"ENV="+instructions["ENV"], "USER="+instructions["USER"], "WORKDIR="+instructions["WORKDIR"],
		"VOLUME="+instructions["VOLUME"], "STOPSIGNAL="+instructions["STOPSIGNAL"], "HEALTH="+list(health),
		"ENTRYPOINT="+list(instructions["ENTRYPOINT"]), "CMD="+list(instructions["CMD"]))
}

// runImage runs containerScript with these variables.
func runImage(t *testing.T, env ...string) {
	t.Helper()
	if why := canRunContainers(t); why != "" {
		t.Skipf("*** THE IMAGE IS NOT RUN: %s ***", why)
	}
	script := exec.Command("unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "sh", "-euc", containerScript)
	script.Env = append(append(os.Environ(), "DIR="+t.TempDir()), env...)
	if out, err := script.CombinedOutput(); err != nil || !strings.HasSuffix(string(out), "the image works\n") {
		t.Errorf("running the image: %v\n%s", err, out)
	}
}

// TestReleaseImage unpacks the image of a release for this machine, and runs it.
func TestReleaseImage(t *testing.T) {
	t.Parallel()
	archive := releasedFile(t, "*_oci.tar")
	needPrograms(t, "tar")
	layout, root := t.TempDir(), t.TempDir()
	unpack := func(file, dir string) {
		t.Helper()
		if out, err := exec.Command("tar", "--extract", "--file="+file, "--directory="+dir).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	unpack(archive, layout)
	type descriptor struct {
		Digest   string
		Platform struct{ Architecture string }
	}
	blob := func(d descriptor) string {
		return filepath.Join(layout, "blobs", strings.Replace(d.Digest, ":", "/", 1))
	}
	var content struct {
		Manifests, Layers []descriptor
		Config            json.RawMessage
	}
	read := func(file string, value any) {
		t.Helper()
		text, err := os.ReadFile(file)
		if err == nil {
			err = json.Unmarshal(text, value)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	read(filepath.Join(layout, "index.json"), &content)
	for content.Layers == nil { // the index of the layout, that of the image, and the manifest for this machine
		i := max(0, slices.IndexFunc(content.Manifests, func(d descriptor) bool {
			return d.Platform.Architecture == runtime.GOARCH
		}))
		next := content.Manifests[i]
		content.Manifests = nil
		read(blob(next), &content)
	}
	for _, layer := range content.Layers {
		unpack(blob(layer), root)
	}
	var config descriptor
	var image struct {
		Config struct {
			User, WorkingDir, StopSignal string
			Env, Entrypoint, Cmd         []string
			Volumes                      map[string]any
			Healthcheck                  struct{ Test []string }
		}
	}
	if err := json.Unmarshal(content.Config, &config); err != nil {
		t.Fatal(err)
	}
	read(blob(config), &image)
	c := image.Config
	list := func(words []string) string { return strings.Join(words, " ") }
	runImage(t, "LOWER="+root, "BUILD=", "ENV="+list(c.Env), "USER="+c.User, "WORKDIR="+c.WorkingDir,
		"VOLUME="+list(slices.Collect(maps.Keys(c.Volumes))), "STOPSIGNAL="+c.StopSignal,
		"HEALTH="+list(c.Healthcheck.Test[1:]), "ENTRYPOINT="+list(c.Entrypoint), "CMD="+list(c.Cmd))
}

// lastStage returns the last stage's instructions by name. Those of one name are joined.
func lastStage(t *testing.T, name string) map[string]string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	instructions := map[string]string{}
	for line := range strings.Lines(string(text)) {
		word, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch {
		case word == "FROM":
			clear(instructions)
		case word == "" || strings.HasPrefix(word, "#"):
		case instructions[word] != "" && word == "RUN":
			instructions[word] += "\n" + rest
		case instructions[word] != "":
			instructions[word] += " " + rest
		default:
			instructions[word] = rest
		}
	}
	if user := instructions["USER"]; user == "" || strings.HasPrefix(user, "0") || strings.HasPrefix(user, "root") {
		t.Errorf("%s: USER = %q, want a user without rights", name, user)
	}
	return instructions
}

// canRunContainers returns why this machine cannot run the script of containers, or nothing if it can.
func canRunContainers(t *testing.T) string {
	if os.Geteuid() != 0 {
		return "only root can mount file systems"
	}
	probe := exec.Command("unshare", "--mount", "--net", "--pid", "--fork", "sh", "-euc", `command -v setpriv dpkg-query
ip link set lo up
mount -t tmpfs none "$DIR"
mkdir "$DIR/upper" "$DIR/work" "$DIR/image"
mount -t overlay overlay -o "lowerdir=/,upperdir=$DIR/upper,workdir=$DIR/work" "$DIR/image"`)
	probe.Env = append(os.Environ(), "DIR="+filepath.Join(t.TempDir()))
	if out, err := probe.CombinedOutput(); err != nil {
		return "it needs Debian, namespaces, overlayfs, setpriv and iproute2: " + string(out)
	}
	return ""
}

// TestImageConfiguration compares the image of a release with that of the Containerfile.
func TestImageConfiguration(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../deploy/container/config.json")
	if err != nil {
		t.Fatal(err)
	}
	var config struct {
		User, WorkingDir, StopSignal string
		Env, Entrypoint, Cmd         []string
		Volumes, ExposedPorts        map[string]struct{}
		Healthcheck                  struct {
			Test                           []string
			Interval, Timeout, StartPeriod time.Duration
		}
	}
	if err := json.Unmarshal(text, &config); err != nil {
		t.Fatal(err)
	}
	command := func(words []string) string {
		text, err := json.Marshal(words)
		if err != nil {
			t.Fatal(err)
		}
		return strings.ReplaceAll(string(text), `","`, `", "`)
	}
	keys := func(m map[string]struct{}) string { return strings.Join(slices.Sorted(maps.Keys(m)), " ") }
	check := config.Healthcheck
	got := map[string]string{
		"USER": config.User, "WORKDIR": config.WorkingDir, "STOPSIGNAL": config.StopSignal, "VOLUME": keys(config.Volumes),
		"EXPOSE": strings.TrimSuffix(keys(config.ExposedPorts), "/tcp"), "ENTRYPOINT": command(config.Entrypoint),
		"CMD": command(config.Cmd), "ENV": strings.Join(config.Env[1:], " "), // without PATH, which is Debian's
		"HEALTHCHECK": fmt.Sprintf("--interval=%gs --timeout=%gs --start-period=%gs CMD %s", check.Interval.Seconds(),
			check.Timeout.Seconds(), check.StartPeriod.Seconds(), command(check.Test[1:])),
	}
	want := lastStage(t, "../Containerfile")
	delete(want, "COPY")
	delete(want, "RUN")
	if !maps.Equal(got, want) {
		t.Errorf("deploy/container/config.json is\n%q,\nand the Containerfile\n%q", got, want)
	}
}
