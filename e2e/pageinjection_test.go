package e2e

import (
	"bufio"
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/html"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// payload is text that adds elements and attributes wherever it is not escaped.
const payload = `"'><x-xss onload=alert(1) style=x>{{.}}<!--`

// closing also ends elements whose content is text. It has a slash.
const closing = payload + `</title></textarea></pre></script><script>alert(1)</script>]]><x-xss/>`

// refPayload is one for names of refs.
const refPayload = `"'><x-xss/onload=alert(1)><script>alert(1)</script>`

// newInjection makes a repository whose texts are all payloads.
func newInjection(t *testing.T, path string) *gittest.Repo {
	r := gittest.InitAt(t, path)
	var b strings.Builder
	message := closing + "\n\n" + closing + "\r\nSet-Cookie: a=b\n"
	fmt.Fprintf(&b, "commit refs/heads/main\nauthor %s <%s> 1 +0000\ncommitter C <c> 2 +0000\ndata %d\n%s\n",
		strings.Map(dropAngles, closing), strings.Map(dropAngles, payload), len(message), message)
	file := func(mode, name, data string) {
		fmt.Fprintf(&b, "M %s inline %s\ndata %d\n%s\n", mode, fastImport(name), len(data), data)
	}
	html := "<html><body onload=alert(1)><script>document.title=\"owned\";alert(1)</script>" + closing
	for _, name := range []string{payload, payload + "2/" + payload, closing, "a\r\nSet-Cookie: x=1\r\n\r\n", "x.html",
		"x.svg", "x.xml", "x.pdf", "x.js", "x\";filename=evil.html", "x.png", "x.htm", "x.xhtml", "x.mhtml", "x.swf"} {
		file("100644", name, html)
	}
	file("100644", "image.svg", `<svg xmlns="http://www.w3.org/2000/svg" onload="alert(1)"><script>alert(1)</script>`+
		`<image href="http://evil.example/x.png"/><foreignObject><iframe xmlns="http://www.w3.org/1999/xhtml" `+
		`src="javascript:parent.alert(1)"/></foreignObject></svg>`)
	file("100644", "binary.html", html+"\x00")
	file("120000", "link", "javascript:alert(1)"+closing)
	file("100644", "README.md", readmePayload)
	file("100644", "plain/README", closing)
	file("100644", "html/README.html", closing)
	file("100644", ".gitmodules", "[submodule \"x"+strings.ReplaceAll(payload, `"`, `\"`)+"\"]\n"+
		"\tpath = module\n\turl = javascript:alert(1)\n"+
		"[submodule \"y\"]\n\tpath = other\n\turl = \"https://evil.example/\\\"><x-xss onload=alert(1)>\"\n")
	fmt.Fprintf(&b, "M 160000 %s module\nM 160000 %[1]s other\n\n", strings.Repeat("1", 40))
	r.GitIn(b.String(), "fast-import", "--quiet")
	r.Git("update-ref", "refs/heads/"+refPayload, "main")
	r.Git("update-ref", "refs/tags/"+refPayload+"1", "main")
	r.Git("tag", "-a", "-m", closing, refPayload+"2", "main")
	r.Git("config", "gitweb.owner", closing)
	r.Git("config", "gitweb.category", closing)
	write(t, filepath.Join(path, "description"), closing+"\n")
	return r
}

// dropAngles drops the characters that Git forbids in names.
func dropAngles(r rune) rune {
	if r == '<' || r == '>' {
		return -1
	}
	return r
}

const readmePayload = `# A <x-xss onload=alert(1)> {onclick=alert(1)}
[a](javascript:alert(1)) [b](JaVaScRiPt:alert(1)) [c](java	script:alert(1)) [d](data:text/html,<script>alert(1)</script>)
[e](vbscript:x) [f](<javascript:alert(1)>) [g](&#106;avascript:alert(1)) [h](//evil.example) [i](/\evil.example)
![a](javascript:alert(1)) ![b](x" onerror="alert(1)) ![c](//evil.example/x.png) ![d](/\evil.example/x.png) ![e](data:x)
<img src=x onerror=alert(1)><img src="//evil.example/x"><svg/onload=alert(1)><math><mtext></p><style>*{}</style>
<a href="javascript:alert(1)" onclick=alert(1) style="x">x</a><iframe srcdoc="<script>alert(1)</script>"></iframe>
<script>alert(1)</script><details open ontoggle=alert(1)><form action=//evil.example><input name=q autofocus onfocus=alert(1)>
<base href=//evil.example><meta http-equiv=refresh content="0;url=//evil.example"><link rel=stylesheet href=//evil.example>
<h1 id=q class=bar>x</h1><p id=main style="position:fixed">x</p><template><x-xss></template><noscript><p title="</noscript><x-xss>">

[ref]: javascript:alert(1) "x"
[ref] <javascript:alert(1)> https://evil.example/"onload=alert(1) ` + "`" + closing + "`" + `

|a" onload=alert(1)|` + payload + `|
|-|-|
` + "\n```\"><x-xss onload=alert(1)>\n" + closing + "\n```\n" + closing

// foreign checks that nothing of a page comes from a payload, and that its policy forbids scripts that are not its own.
func foreign(t *testing.T, what string, header http.Header, page []byte) {
	t.Helper()
	policy := header.Get("Content-Security-Policy")
	for _, part := range []string{"default-src 'none'", "script-src 'self'", "style-src 'self'", "img-src 'self'",
		"base-uri 'none'", "form-action 'self'", "frame-ancestors 'none'"} {
		if !strings.Contains(policy, part) {
			t.Errorf("%s has the policy %q, want %s", what, policy, part)
		}
	}
	if strings.Contains(policy, "unsafe") || header.Get("X-Content-Type-Options") != "nosniff" {
		t.Errorf("%s has the header %v", what, header)
	}
	safe(t, what, page)
	elements(t, page, func(n *html.Node) bool {
		if strings.HasPrefix(n.Data, "x-") || slices.Contains([]string{"math", "template", "noscript", "textarea"}, n.Data) ||
			n.Data == "meta" && attribute(n, "http-equiv") != "" {
			t.Errorf("%s has an element %s", what, n.Data)
		}
		for _, a := range n.Attr {
			to := strings.ToLower(strings.Map(func(r rune) rune {
				if r <= ' ' {
					return -1
				}
				return r
			}, a.Val))
			isHere := strings.HasPrefix(to, "/") || strings.HasPrefix(to, "#") || strings.HasPrefix(to, "?")
			isLink := slices.Contains([]string{"href", "src", "action", "formaction", "srcset", "poster", "data"}, a.Key)
			if isLink && a.Key != "href" && (strings.HasPrefix(to, "//") || strings.HasPrefix(to, `/\`)) ||
				isLink && to != "" && !isHere && !strings.HasPrefix(to, "https://") && !strings.HasPrefix(to, "http://") &&
					!strings.HasPrefix(to, "mailto:") {
				t.Errorf("%s: %s has %s=%q", what, n.Data, a.Key, a.Val)
			}
			if a.Key == "id" && attribute(n.Parent, "class") == "prose" && !strings.HasPrefix(a.Val, "readme-") {
				t.Errorf("%s: the README has id=%q", what, a.Val)
			}
		}
		return false
	})
}

// injected are addresses with payloads.
const injected = `
	/ /?prefix=QUERY /?filter=QUERY /?after=QUERY /-/search?q=QUERY /-/sign-in?to=QUERY /-/sign-in?to=/QUERY
	/-/tokens?x=QUERY
	/-/nothingPATH /-/seen?to=QUERY AT/ AT/?QUERY AT/?go-get=1&QUERY /plain/ /plain/?go-get=1
	AT/-/refs AT/-/refs?branch=QUERY AT/-/refs?tag=QUERY
	AT/-/tree/main/plain AT/-/tree/main/html AT/-/tree/main?from=QUERY AT/-/tree/main?wait=QUERY AT/-/tree/PATH
	AT/-/commit/main AT/-/commit/ID AT/-/commit/PATH
	AT/-/compare/PATH...PATH AT/-/compare/main.../PATH AT/-/compare/main...REF
	AT/-/log/main?author=QUERY AT/-/log/main?text=QUERY&skip=QUERY AT/-/log/main?path=QUERY
	AT/-/log/main?author=C&path=QUERY AT/-/log/REF AT/-/log/REF2
	AT/-/file/main/link AT/-/file/main/module AT/-/tree/main/other AT/-/file/main/x.html?line=QUERY
	/PATH/ /cgit/PATH/tree/?h=QUERY /?p=QUERY;a=tree;hb=QUERY /PATH/+/main AT/tree/?h=QUERY AT/log/?h=QUERY&qt=grep&q=QUERY
`

// elsewhere are addresses that must not lead to evil.example, or add to the header. ID is an object ID.
const elsewhere = `
	/-/seen?to=//evil.example /-/seen?to=/%09/evil.example /-/seen?to=/%5Cevil.example /-/seen?to=%09//evil.example
	/-/seen?to=/%0D%0AX-Evil:1 /-/seen?to=https://evil.example /-/seen?to=/.//evil.example
	//evil.example/-/file/x //evil.example/a/-/file/main//x /\evil.example/-/file/main//x //%5Cevil.example/-/file//x
	///evil.example/-/file/main//x /cgit//evil.example/tree/ /cgit/%2Fevil.example/tree/ /cgit/%5Cevil.example/tree/x
	/?p=//evil.example;a=summary /?p=/%5Cevil.example;a=summary /?p=%09/evil.example;a=tree /?p=https://evil.example;a=tree
	//evil.example/+/main /%2F%2Fevil.example/+/main /plugins/gitiles//evil.example/+/main /gitweb//evil.example/commit/x
	/%0D%0AX-Evil:1/tree/ /plain/tree/%0D%0AX-Evil:1 /plain/+/main/%0D%0AX-Evil:1 /plain/-/tree/main/%0D%0AX-Evil:1
	//evil.example/ /%2Fevil.example/ /\/evil.example/-/blame/main/x //evil.example/-/blame/main/x
	/plain/-/blame/main/x.html /plain/-/history/main/%0d%0aX-Evil:1 /.//evil.example/-/compare/a..b
`

// serveInjection serves the repository at the path at, and returns addresses with payloads.
func serveInjection(t *testing.T) (c *browserClient, at string, paths []string) {
	root := t.TempDir()
	name := "dir/" + payload
	if err := os.Mkdir(filepath.Join(root, "dir"), 0o777); err != nil {
		t.Fatal(err)
	}
	r := newInjection(t, filepath.Join(root, name+".git"))
	newInjection(t, filepath.Join(root, "plain.git"))
	at = "/" + escapePath(name)
	return servePages(t, root), at, strings.Fields(strings.NewReplacer("AT", at, "QUERY", url.QueryEscape(closing), "PATH",
		escapePath(closing), "REF", escapePath(refPayload), "ID", r.ID("main").String()).Replace(injected))
}

// TestPageInjection visits pages of a repository whose texts are payloads, and sends payloads in requests.
func TestPageInjection(t *testing.T) {
	t.Parallel()
	c, at, paths := serveInjection(t)
	for _, file := range []string{payload, payload + "2/" + payload, closing, "a\r\nSet-Cookie: x=1\r\n\r\n", "x.html",
		"x.svg", "x.js", "README.md", ".gitmodules"} {
		for _, kind := range []string{"file", "blame", "history"} {
			paths = append(paths, at+"/-/"+kind+"/"+escapePath(refPayload)+"/"+escapePath(file))
		}
	}
	pages := 0
	for _, path := range paths {
		_, header, page := c.try(path)
		if strings.HasPrefix(header.Get("Content-Type"), "text/html") {
			foreign(t, path, header, page)
			pages++
		} else if !strings.HasPrefix(header.Get("Content-Type"), "text/plain") ||
			header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s has the header %v", path, header)
		}
	}
	if pages < len(paths)*3/4 {
		t.Errorf("%d of %d addresses are pages", pages, len(paths))
	}
	t.Run("raw", func(t *testing.T) { injectRaw(t, &browserClient{t, c.Client, c.base, c.state}, at) })
	t.Run("headers", func(t *testing.T) { injectHeaders(t, c.base) })
}

// injectRaw checks files, patches, feeds and archives.
func injectRaw(t *testing.T, c *browserClient, at string) {
	for file, want := range map[string]string{"x.html": "text/plain", "image.svg": "image/svg+xml", "x.xml": "text/plain",
		"x.pdf": "text/plain", "x.js": "text/plain", "x.xhtml": "text/plain", "x.mhtml": "text/plain", "x.swf": "text/plain",
		"binary.html": "application/octet-stream", "x.png": "image/png", payload: "text/plain", closing: "text/plain",
		"a\r\nSet-Cookie: x=1\r\n\r\n": "text/plain", "x\";filename=evil.html": "text/plain"} {
		_, header, _ := c.try(at + "/-/raw/main/" + escapePath(file))
		got, _, _ := mime.ParseMediaType(header.Get("Content-Type"))
		disposition, params, err := mime.ParseMediaType(header.Get("Content-Disposition"))
		if got != want || !strings.Contains(header.Get("Content-Security-Policy"), "default-src 'none'") ||
			!strings.Contains(header.Get("Content-Security-Policy"), "sandbox") ||
			header.Get("X-Content-Type-Options") != "nosniff" || header.Get("Set-Cookie") != "" {
			t.Errorf("raw %q has the header %v, want %s", file, header, want)
		}
		if base := file[strings.LastIndexByte(file, '/')+1:]; err != nil || params["filename"] != base ||
			(disposition == "attachment") != (want == "application/octet-stream") {
			t.Errorf("raw %q is %s %q, %v", file, disposition, params, err)
		}
	}
	for path, want := range map[string]string{"/-/commit/main.patch": "text/plain", "/-/feed/main": "application/atom+xml",
		"/-/archive/" + escapePath(refPayload) + ".tar": "application/x-tar"} {
		status, header, body := c.try(at + path)
		got, _, _ := mime.ParseMediaType(header.Get("Content-Type"))
		if status != http.StatusOK || got != want || header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: %d %v, want %s", path, status, header, want)
		}
		if disposition := header.Get("Content-Disposition"); disposition != "" {
			if _, _, err := mime.ParseMediaType(disposition); err != nil {
				t.Errorf("%s: Content-Disposition %q: %v", path, disposition, err)
			}
		}
		if want != "application/atom+xml" {
			continue
		}
		for d := xml.NewDecoder(bytes.NewReader(body)); ; {
			token, err := d.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("the feed: %v: %s", err, body)
			}
			if e, ok := token.(xml.StartElement); ok && e.Name.Local == "x-xss" {
				t.Errorf("the feed has an element %v", e.Name)
			}
		}
	}
}

// requestAsIs sends a request as it is and returns the response.
func requestAsIs(t *testing.T, base, path string, headers ...string) (*http.Response, string) {
	t.Helper()
	host := strings.TrimPrefix(base, "http://")
	conn, err := net.Dial("tcp", host)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if !slices.ContainsFunc(headers, func(h string) bool { return strings.HasPrefix(h, "Host:") }) {
		headers = append(headers, "Host: "+host)
	}
	fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nAccept: text/html\r\nConnection: close\r\n%s\r\n\r\n", path,
		strings.Join(headers, "\r\n"))
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatalf("GET %s: %v", path, err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatalf("GET %s: %v", path, err)
	}
	return response, string(body)
}

// injectHeaders checks where redirects lead, and what the header of a request changes.
func injectHeaders(t *testing.T, base string) {
	for _, path := range strings.Fields(strings.ReplaceAll(elsewhere, "ID", strings.Repeat("1", 40))) {
		response, _ := requestAsIs(t, base, path)
		if response.Header.Get("X-Evil") != "" {
			t.Errorf("%s adds a field to the header", path)
		}
		to := response.Header.Get("Location")
		plain := strings.NewReplacer("\t", "", "\n", "", "\r", "", `\`, "/").Replace(to) // as browsers read it
		if to != "" && (!strings.HasPrefix(plain, "/") || strings.HasPrefix(plain, "//")) {
			t.Errorf("%s leads to %q", path, to)
		}
	}
	for _, header := range []string{"Host: evil.example", "X-Forwarded-Host: evil.example", "Forwarded: host=evil.example",
		"Host: \"><x-xss>", "X-Forwarded-Proto: javascript", "X-Original-URL: /evil", "X-Forwarded-Prefix: /evil",
		"Cookie: packhorse-session=" + strings.Repeat("A", 200) + "; packhorse-seen=x; packhorse-flow=" + payload} {
		response, page := requestAsIs(t, base, "/plain/", header)
		if strings.HasPrefix(response.Header.Get("Content-Type"), "text/html") {
			foreign(t, header, response.Header, []byte(page))
		}
		if !strings.HasPrefix(header, "Host:") && !strings.Contains(page, `value="git clone `+base+`/plain.git"`) &&
			!strings.Contains(page, `value="git clone `+base+`/plain"`) {
			t.Errorf("with %q the page has another address to clone", header)
		}
		if _, page := requestAsIs(t, base, "/plain/"); strings.Contains(page, "git clone http://evil.example") {
			t.Errorf("after a request with %q others see that host", header)
		}
		if _, feed := requestAsIs(t, base, "/plain/-/feed/main"); strings.Contains(feed, "http://evil.example") {
			t.Errorf("after a request with %q the feed has that host", header)
		}
	}
}
