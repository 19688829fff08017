{{- /* The words of all pages, by sections: [{page, title, id, heading, text}, ...]. */ -}}
{{- $sections := slice -}}
{{- range where site.Pages "File" "ne" nil -}}
	{{- $title := partial "title.html" . -}}
	{{- $page := strings.TrimPrefix "/" .RelPermalink -}}
	{{- $html := replaceRE `(?s)<a class="anchor".*?</a>` "" .Content | replaceRE `<(/?(?:td|th|li|p|pre|br)\b)` " <$1" -}}
	{{- range after 1 (split (replaceRE `<h[1-6] id="` "\x02" $html) "\x02") -}}
		{{- with findRESubmatch `(?s)^([^"]*)">(.*?)</h[1-6]>(.*)$` . 1 -}}
			{{- $heading := index . 0 2 | plainify | htmlUnescape | strings.TrimSpace -}}
			{{- $section := dict "page" $page "title" $title "id" (index . 0 1) "heading" $heading -}}
			{{- $text := index . 0 3 -}}
			{{- /* Keys of the configuration have their full names, such as http.max_body. */ -}}
			{{- if hasPrefix $heading "[" -}}
				{{- $text = replaceRE `(<tr>\s*<td><code>)` (printf "${1}%s." (strings.Trim $heading "[]")) $text -}}
			{{- end -}}
			{{- $section = merge $section (dict "text" ($text | plainify | htmlUnescape | replaceRE `\s+` " " | strings.TrimSpace)) -}}
			{{- $sections = $sections | append $section -}}
		{{- end -}}
	{{- end -}}
{{- end -}}
searchIndex({{ jsonify $sections }});
