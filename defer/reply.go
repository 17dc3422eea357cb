package deferral

import "strconv"

// The scripts reply with arrays of numbers and strings; a number over 32 bits
// comes as a string. What is missing or of another type reads as zero.

func codeOf(v any) (int64, []any) {
	r, _ := v.([]any)
	return intAt(r, 0), r
}

func intAt(r []any, i int) int64 {
	if i >= len(r) {
		return 0
	}
	switch v := r[i].(type) {
	case int64:
		return v
	case string:
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil {
			f, _ := strconv.ParseFloat(v, 64) // a score may come as 1.7e+15
			n = int64(f)
		}
		return n
	}
	return 0
}

func stringAt(r []any, i int) string {
	if i >= len(r) {
		return ""
	}
	s, _ := r[i].(string)
	return s
}

func listAt(r []any, i int) []any {
	if i >= len(r) {
		return nil
	}
	l, _ := r[i].([]any)
	return l
}

func stringsAt(r []any, i int) []string {
	var out []string
	for _, v := range listAt(r, i) {
		if s, ok := v.(string); ok {
			out = append(out, s)
		}
	}
	return out
}
