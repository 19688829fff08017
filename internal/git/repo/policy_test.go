package repo

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// gitPolicy is git's policy without configuration.
func gitPolicy() Policy {
	return Policy{KeepAlive: 5 * time.Second, Unborn: UnbornAdvertise, ObjectInfo: true}
}

func parsePolicy(t testing.TB, text string, defaults Policy) (*Policy, error) {
	t.Helper()
	config, err := ParseConfig(text)
	if err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	return newPolicy(config, defaults)
}

func TestPolicy(t *testing.T) {
	t.Parallel()
	for text, change := range map[string]func(p *Policy){
		"":                            func(*Policy) {},
		"[uploadpack]\nallowFilter":   func(p *Policy) { p.Filter = true },
		"[uploadpack]\nallowFilter =": func(*Policy) {},
		"[UploadPack]\nALLOWFILTER = Yes\n[uploadpack \"x\"]\nallowFilter = false": func(p *Policy) { p.Filter = true },
		"[uploadpack]\nallowFilter = 1k\nallowFilter = off":                        func(*Policy) {},
		"[uploadpack]\nallowRefInWant = on":                                        func(p *Policy) { p.RefInWant = true },
		"[uploadpack]\nallowSidebandAll = -1":                                      func(p *Policy) { p.SidebandAll = true },
		"[uploadpack]\nallowTipSHA1InWant":                                         func(p *Policy) { p.AllowTip = true },
		"[uploadpack]\nallowReachableSHA1InWant": func(p *Policy) {
			p.AllowReachable = true
		},
		"[uploadpack]\nallowAnySHA1InWant": func(p *Policy) {
			p.AllowTip, p.AllowReachable, p.AllowAny, p.OwnAny = true, true, true, true
		},
		"[uploadpack]\nallowAnySHA1InWant\nallowTipSHA1InWant = false":       func(p *Policy) { p.AllowReachable = true },
		"[uploadpack]\nallowReachableSHA1InWant\nallowAnySHA1InWant = false": func(*Policy) {},
		"[uploadpack]\nallowAnySHA1InWant = false\nallowReachableSHA1InWant": func(p *Policy) { p.AllowReachable = true },
		"[uploadpack]\nallowTipSHA1InWant = true\nallowReachableSHA1InWant = true": func(p *Policy) {
			p.AllowTip,
				p.AllowReachable = true, true
		},
		"[uploadpack]\nkeepAlive = 0":                                  func(p *Policy) { p.KeepAlive = 0 },
		"[uploadpack]\nkeepAlive = -3":                                 func(p *Policy) { p.KeepAlive = 0 },
		"[uploadpack]\nkeepAlive = 0x10\n":                             func(p *Policy) { p.KeepAlive = 16 * time.Second },
		"[uploadpack]\nkeepAlive = 1k":                                 func(p *Policy) { p.KeepAlive = 1024 * time.Second },
		"[lsrefs]\nunborn = allow":                                     func(p *Policy) { p.Unborn = UnbornAllow },
		"[lsrefs]\nunborn = x\nunborn = ignore":                        func(p *Policy) { p.Unborn = UnbornIgnore },
		"[transfer]\nadvertiseSID = true":                              func(p *Policy) { p.SessionID = true },
		"[transfer]\nadvertiseObjectInfo = x\nadvertiseObjectInfo = 0": func(p *Policy) { p.ObjectInfo = false },
		"[uploadpackfilter]\nallow = false":                            func(p *Policy) { p.Filters.refuseOthers = true },
		"[uploadpackfilter \"blob:none\"]\nallow = false": func(p *Policy) {
			p.Filters.named = map[string]bool{"blob:none": false}
		},
		"[uploadpackfilter \"tree\"]\nmaxDepth = 3\n[uploadpackfilter \"x\"]\nmaxDepth = y": func(p *Policy) {
			p.Filters = FilterRules{named: map[string]bool{"tree": true}, treeLimited: true, maxTree: 3}
		},
	} {
		want := gitPolicy()
		change(&want)
		if want.Filters.named == nil {
			want.Filters.named = map[string]bool{}
		}
		got, err := parsePolicy(t, text, gitPolicy())
		if err != nil || !reflect.DeepEqual(*got, want) {
			t.Errorf("%q:\n got %+v, %v\nwant %+v", text, got, err, want)
		}
	}
	for _, text := range []string{
		"[uploadpack]\nallowFilter = perhaps\nallowFilter = 1", "[uploadpack]\nallowRefInWant = 1kk",
		"[uploadpack]\nallowAnySHA1InWant = 9999999999",
		"[uploadpack]\nkeepAlive", "[uploadpack]\nkeepAlive =", "[uploadpack]\nkeepAlive = 3s", "[lsrefs]\nunborn",
		"[lsrefs]\nunborn = Allow",
		"[transfer]\nadvertiseSID = x\nadvertiseSID = 1", "[transfer]\nadvertiseObjectInfo = x",
		"[uploadpackfilter]\nallow = x",
		"[uploadpackfilter \"any kind\"]\nallow = x", "[uploadpackfilter \"tree\"]\nmaxDepth",
		"[uploadpackfilter \"tree\"]\nmaxDepth = -1",
	} {
		if p, err := parsePolicy(t, text, DefaultPolicy()); !fault.Is(err, fault.Corrupt) {
			t.Errorf("%q: %+v, %v", text, p, err)
		}
	}
}

// TestPolicyOverDefaults checks that the server's defaults apply without the repository's settings. Its settings for
// hidden refs and alternates override them.
func TestPolicyOverDefaults(t *testing.T) {
	t.Parallel()
	any := gitPolicy()
	any.AllowTip, any.AllowReachable, any.AllowAny = true, true, true
	p, err := parsePolicy(t, "[uploadpack]\nallowTipSHA1InWant", any)
	if err != nil || !p.AllowAny || p.OwnAny {
		t.Errorf("%+v, %v", p, err)
	}
	p, err = parsePolicy(t, "[uploadpack]\nallowReachableSHA1InWant = false\nallowFilter = false", DefaultPolicy())
	if want := DefaultPolicy(); err != nil || p.Filter || p.RefInWant != want.RefInWant || p.AllowReachable {
		t.Errorf("%+v, %v", p, err)
	}
	if p, err = parsePolicy(t, "", any); err != nil || !p.AllowAny || p.OwnAny {
		t.Errorf("%+v, %v", p, err)
	}
}

// Numbers and truth values are read as git reads them.
func TestValuesAsGit(t *testing.T) {
	t.Parallel()
	const seed = 3
	rnd := rand.New(rand.NewPCG(seed, 0))
	values := []string{"", "0", "1", "-1", "+5", "010", "08", "0x1F", "0x", "1k", "1K", "2m", "3g", "1kk", "k", "-k",
		"1_0", "0b1", "0o7", "2147483647", "2147483648",
		"-2147483647", "-2147483648", "2097151k", "2097152k", "1g", "2g", " 7", "7 ", "1.5",
		"true", "TRUE", "yes", "on", "No", "off", "false", "tru", "١"}
	for range 200 {
		var b strings.Builder
		for range 1 + rnd.IntN(5) {
			b.WriteByte("0123456789+-xkmgKMG _b"[rnd.IntN(22)])
		}
		values = append(values, b.String())
	}
	g := gittest.Init(t)
	for _, value := range values {
		v := variable{key: "a.b", value: value}
		out, err := g.Try("-c", "a.b="+value, "config", "--type=bool", "a.b")
		var on bool
		if ours := v.readBool(&on); (ours == nil) != (err == nil) || err == nil && strconv.FormatBool(on) != out {
			t.Errorf("seed %d, %q as a truth value: %t, %v; git: %q, %v", seed, value, on, ours, out, err)
		}
		out, err = g.Try("-c", "a.b="+value, "config", "--type=bool-or-int", "a.b")
		if _, isWord := map[string]bool{"true": true, "false": true}[out]; isWord && err == nil {
			continue
		}
		if n, ours := v.int(); (ours == nil) != (err == nil) || err == nil && fmt.Sprint(n) != out {
			t.Errorf("seed %d, %q as a number: %d, %v; git: %q, %v", seed, value, n, ours, out, err)
		}
	}
	for value, want := range map[string]uint64{"0": 0, "+4": 4, "18446744073709551615": 1<<64 - 1, "2k": 2048,
		"0x10": 16} {
		if n, err := (variable{value: value}).unsigned(); err != nil || n != want {
			t.Errorf("%q: %d, %v", value, n, err)
		}
	}
	for _, value := range []string{"", "-1", "-0", "18446744073709551616", "18014398509481984k", "1_0", "x"} {
		if n, err := (variable{value: value}).unsigned(); err == nil {
			t.Errorf("%q: %d", value, n)
		}
	}
}

func TestBundles(t *testing.T) {
	t.Parallel()
	const on = "[uploadpack]\nadvertiseBundleURIs = true\n"
	p, err := parsePolicy(t, "[bundle]\nversion = 1\n"+
		on+"[bundle]\nmode = all\n[bundle \"Day.1\"]\nuri = https://x.example/a?b=c\ncreationToken = 7\n"+
		"[bundle \"two\"]\nuri = ../bundles/two.bundle\n[bundle \"three\"]\nuri = HTTP://x/\n", DefaultPolicy())
	want := []string{"bundle.version=1", "bundle.mode=all", "bundle.Day.1.uri=https://x.example/a?b=c",
		"bundle.Day.1.creationtoken=7",
		"bundle.two.uri=../bundles/two.bundle", "bundle.three.uri=HTTP://x/"}
	if err != nil || p.Bundles.Err != nil || !p.Bundles.Offered || !slices.Equal(p.Bundles.Lines, want) {
		t.Errorf("%+v, %v", p.Bundles, err)
	}
	for _, text := range []string{"", "[bundle \"x\"]\nuri = file:///etc/passwd\n", on +
		"[uploadpack]\nadvertiseBundleURIs =\n"} {
		if p, err := parsePolicy(t, text, DefaultPolicy()); err != nil || !reflect.DeepEqual(p.Bundles, Bundles{}) {
			t.Errorf("%q: %+v, %v", text, p.Bundles, err)
		}
	}
	uri := func(value string) string {
		return on + "[bundle \"ok\"]\nuri = https://x/\n[bundle \"x\"]\nuri = \"" + value + "\"\n"
	}
	for _, text := range []string{
		uri(""), uri("a b"), uri("https://x/\\n"), uri("https://x/ y"), uri("https://x/\\t"), uri("https://x/\x1b"),
		uri("https://x/\x7f"), uri("https://x/\r"),
		uri("https://é/"), uri("file:///x"), uri("/etc/passwd"), uri("ext::sh"), uri("ssh://x/y"), uri("host:path"),
		uri("C:x"), uri("-x"),
		on + "[bundle \"x\"]\nuri\n", on + "[bundle \"x\x01\"]\nuri = https://x/\n", on +
			"[bundle \"x=y\"]\nuri = https://x/\n",
		on + "[bundle \"x\"]\ntitle = \"a\\nbundle.x.uri=https://evil/\"\n", on + "[bundle]\nmode = " +
			strings.Repeat("x", maxBundleLine) + "\n",
		"[uploadpack]\nadvertiseBundleURIs = perhaps\n",
	} {
		p, err := parsePolicy(t, text, DefaultPolicy())
		if err != nil || p.Bundles.Err == nil || p.Bundles.Offered || len(p.Bundles.Lines) > 0 {
			t.Errorf("%.200q: %+v, %v", text, p.Bundles, err)
		} else if msg := p.Bundles.Err.Error(); strings.ContainsAny(msg, "\x01\n") || len(msg) > 500 {
			t.Errorf("%.200q: the error is %q", text, msg)
		}
	}
}

// Every key that is read has its line in the page about them.
func TestKeysAreDocumented(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../docs/reference/protocol.md")
	if err != nil {
		t.Fatal(err)
	}
	keys := []string{advertiseBundles, bundleSection + "*", filterSection + "<filter>.allow", filterSection +
		"tree.maxdepth", "transfer.hiderefs",
		"uploadpack.hiderefs", "http.uploadpack"}
	for _, key := range slices.AppendSeq(slices.AppendSeq(keys, maps.Keys(policyKeys())), maps.Keys(wantKeys())) {
		if !regexp.MustCompile("(?im)^\\|[^|]*`" + regexp.QuoteMeta(key) + "`").Match(page) {
			t.Errorf("docs/reference/protocol.md has no line for %s", key)
		}
	}
}
