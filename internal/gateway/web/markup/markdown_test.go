package markup

import "testing"

// A text can use HTML of the policy. It cannot leave elements open, or close those of the page.
func TestHTML(t *testing.T) {
	t.Parallel()
	links := Links{File: func(to string) string { return "/r/file/" + to },
		Raw: func(to string) string { return "/r/raw/" + to }}
	for text, want := range map[string]string{
		"![a](x.png) ![b](/y.png)":                         `<p><img src="/r/raw/x.png" alt="a"> <img src="/r/raw//y.png" alt="b"></p>` + "\n",
		"![a&](https://x.example/x.png)":                   "<p>a&amp;</p>\n",
		`<img src="/a.png" width="20" onerror="x">`:        `<img src="/r/raw//a.png" width="20">`,
		`<img src="//x.example/a" alt="<b>">`:              "&lt;b&gt;",
		`<kbd>A</kbd> <a href="/b">b</a>`:                  `<p><kbd>A</kbd> <a href="/r/file//b" rel="nofollow">b</a></p>` + "\n",
		"[a](#B) [b](c.md#d)":                              `<p><a href="#readme-B" rel="nofollow">a</a> <a href="/r/file/c.md#d" rel="nofollow">b</a></p>` + "\n",
		"<details><summary>a</summary>\n\nb\n\n</details>": "<details><summary>a</summary>\n<p>b</p>\n</details>",
		"<table><tr><td><b>x":                              "<table><tr><td><b>x</b></td></tr></table>",
		"</div></article></details></p>x":                  "x",
		"<p><kbd></p>x</kbd>":                              "<p><kbd></kbd></p>x",
		"# A\n<h1 id=a>b</h1>":                             `<h1 id="readme-a">A</h1>` + "\n<h1>b</h1>",
		"<b><plaintext>":                                   "<p><b>&lt;/p&gt;\n</b></p>",
		"<p><script><!--<script></script>x":                "<p></p>",
		"<a href=\"javascript:x\">y</a><svg onload=x>":     "<p>y</p>\n",
	} {
		if got, ok := Markdown(t.Context(), []byte(text), links); got != want || !ok {
			t.Errorf("%q is %q, want %q", text, got, want)
		}
	}
}
