package fleet

import (
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// setClock sets the wall clock of this process to off before or after the
// machine's, whatever looks at it. A Go program asks no library for the time
// that could be put in the way of: it calls a function that the kernel has put
// into its memory. That one is written over here, in this process's own copy,
// by one that asks the kernel and adds off to what is not the monotonic clock.
func setClock(off time.Duration) error {
	memory, err := os.OpenFile("/proc/self/mem", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer memory.Close()
	base, err := vdso()
	if err != nil {
		return err
	}
	library, err := elf.NewFile(io.NewSectionReader(memory, base, 1<<20))
	if err != nil {
		return fmt.Errorf("the kernel's functions: %w", err)
	}
	symbols, err := library.DynamicSymbols()
	if err != nil {
		return fmt.Errorf("the kernel's functions: %w", err)
	}
	place := map[string]int64{}
	for _, s := range symbols {
		place[s.Name] = base + int64(s.Value)
	}
	// A thread may be in the function just now. So the new code goes to where
	// that of another stands, which Go never calls, and over the beginning of this
	// one only the way there.
	from, to := place["__vdso_clock_gettime"], place["__vdso_gettimeofday"]
	if from == 0 || to == 0 {
		return errors.New("the kernel's functions are not where they were looked for")
	}
	code := binary.LittleEndian.AppendUint64(askKernel, uint64(int64(off/time.Second)))
	if _, err := memory.WriteAt(append(code, addSeconds...), to); err != nil {
		return err
	}
	const jump, length = 0xe9, 5
	way := binary.LittleEndian.AppendUint32([]byte{jump}, uint32(int32(to-from-length)))
	if _, err := memory.WriteAt(way, from); err != nil {
		return err
	}
	var machine unix.Timespec // this way round the function
	if err := unix.ClockGettime(unix.CLOCK_REALTIME, &machine); err != nil {
		return err
	}
	if d := time.Since(time.Unix(machine.Unix()).Add(off)).Abs(); d > 2*time.Second {
		return fmt.Errorf("it was to be set by %v, and is %v off that", off, d)
	}
	return nil
}

// The new function. RDI is the clock's number, RSI where its time is to go.
var (
	askKernel = []byte{
		0xb8, 0xe4, 0x00, 0x00, 0x00, // mov  $228, %eax   clock_gettime
		0x0f, 0x05, //                   syscall
		0x85, 0xff, //                   test %edi, %edi   the wall clock is 0
		0x75, 0x0d, //                   jne  done
		0x48, 0xb9, //                   mov  $off, %rcx   its 8 bytes follow
	}
	addSeconds = []byte{
		0x48, 0x01, 0x0e, //             add  %rcx, (%rsi)
		0xc3, //                   done: ret
	}
)

// vdso is where the kernel has put its functions.
func vdso() (int64, error) {
	const sysinfoEHDR = 33
	text, err := os.ReadFile("/proc/self/auxv")
	if err != nil {
		return 0, err
	}
	for ; len(text) >= 16; text = text[16:] {
		if binary.NativeEndian.Uint64(text) == sysinfoEHDR {
			return int64(binary.NativeEndian.Uint64(text[8:])), nil
		}
	}
	return 0, errors.New("the kernel has not put its functions into this process")
}
