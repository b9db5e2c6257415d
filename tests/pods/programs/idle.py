"""Does nothing until SIGTERM."""

import signal


def main() -> None:
    """Wait."""
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM,))
    with open("/dev/termination-log", "w") as ready:
        ready.write("up")
    signal.sigwait((signal.SIGTERM,))


if __name__ == "__main__":
    main()
